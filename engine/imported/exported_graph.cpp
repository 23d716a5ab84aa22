// SPDX-License-Identifier: Apache-2.0
// From the JSON of torch.export to steps: operators, arguments and modules are looked up once.
#include "moonhalo/engine/imported/exported_graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/imported/exported_arguments.h"

namespace moonhalo::exported {
namespace {

using nlohmann::json;

constexpr std::string_view kOps = "torch.ops.", kHigherOrder = "torch.ops.higher_order.";

// The last line of the model's own in `File "net.py", line 20, in forward`, else PyTorch's.
std::string model_line(const std::string& trace) {
  std::string own, any;
  std::istringstream in(trace);
  for (std::string line; std::getline(in, line);) {
    const size_t begin = line.find("File \""), end = line.find("\", line ");
    if (begin == std::string::npos || end == std::string::npos) continue;
    const std::string rest = line.substr(end + 8);
    std::string place = line.substr(begin + 6, end - begin - 6) + ":" + rest.substr(0, rest.find(','));
    if (std::string code; std::getline(in, code)) {
      const size_t first = code.find_first_not_of(' ');
      if (first != std::string::npos) place += ": " + code.substr(first);
    }
    any = place;
    if (place.find("/site-packages/torch/") == std::string::npos) own = place;
  }
  return own.empty() ? any : own;
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

c10::OperatorHandle find_operator(const std::string& target) {
  const std::vector<std::string> parts = parts_of(target.substr(kOps.size()), '.');
  TORCH_CHECK_VALUE(parts.size() == 3, "'", target, "' is not an operator");
  const c10::OperatorName name(parts[0] + "::" + parts[1], parts[2] == "default" ? "" : parts[2]);
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  TORCH_CHECK_NOT_IMPLEMENTED(found, "the operator '", name,
                              "' is not in this LibTorch\n  fix   load the library that has it, or ",
                              "export the model without it");
  return *found;
}

class StepBuilder {
 public:
  StepBuilder(SlotNames& names, const c10::Device& device, std::map<std::string, std::string>& classes)
      : names_(names), device_(device), classes_(classes) {}

  void add(const json& node, std::vector<Step>& steps) {
    Step step;
    step.target = node.at("target").get<std::string>();
    if (is_check(step.target)) return;
    read_place(node, step);
    if (step.target.starts_with(kHigherOrder)) {
      read_higher_order(node, step);
    } else if (step.target.starts_with(kOps)) {
      read_operator(node, step);
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(is_number_operator(step.target), "the program computes '", step.target,
                                  "', which is not done");
      step.kind = Step::Kind::kNumber;
      read_arguments(node, step);
    }
    read_outputs(node, step);
    steps.push_back(std::move(step));
  }

  SubGraph sub_graph(const json& graph) {
    SlotNames names;
    SubGraph made;
    StepBuilder inner(names, device_, classes_);
    for (const json& input : graph.at("inputs")) made.inputs.push_back(names.define(name_of(input)));
    for (const json& node : graph.at("nodes")) inner.add(node, made.steps);
    for (const json& output : graph.at("outputs"))
      made.outputs.push_back(read_argument(output, nullptr, names, device_));
    made.slots = names.count();
    return made;
  }

  // "x" of {"as_tensor": {"name": "x"}} or {"as_sym_int": {"as_name": "x"}}; "" where nothing has a name.
  static std::string name_of(const json& value) {
    const json& inner = only_entry(value).second;
    if (!inner.is_object()) return "";
    if (inner.contains("as_tensor")) return name_of(inner);
    return inner.contains("name") ? inner.at("name").get<std::string>() : inner.value("as_name", "");
  }

 private:
  // Notes of torch.export about sizes and dtypes of its example.
  static bool is_check(const std::string& target) {
    return target.starts_with("torch.ops.aten.sym_constrain_range") ||
           target == "torch.ops.aten._assert_tensor_metadata.default";
  }

  void read_place(const json& node, Step& step) {
    if (!node.contains("metadata")) return;
    const json& metadata = node.at("metadata");
    step.line = model_line(metadata.value("stack_trace", ""));
    for (const std::string& entry : parts_of(metadata.value("nn_module_stack", ""), ';')) {
      const std::vector<std::string> parts = parts_of(entry, ',');
      if (parts.size() != 3) continue;
      const std::string name = parts[1].substr(0, parts[1].find('@'));  // "fc@1": the second call
      classes_[name] = parts[2].substr(parts[2].rfind('.') + 1);
      if (!name.empty()) step.modules.push_back({name, parts[1]});
    }
  }

  void read_arguments(const json& node, Step& step) {
    for (const json& input : node.at("inputs"))
      step.arguments.push_back(read_argument(input.at("arg"), nullptr, names_, device_));
  }

  void read_operator(const json& node, Step& step) {
    if (step.target == "torch.ops.aten.sym_size.int") step.kind = Step::Kind::kSize;
    if (step.target == "torch.ops.aten.sym_numel.default") step.kind = Step::Kind::kNumel;
    if (step.target == "torch.ops.aten._assert_scalar.default") step.kind = Step::Kind::kAssert;
    if (step.kind != Step::Kind::kOperator) return read_arguments(node, step);
    step.op = find_operator(step.target);
    std::map<std::string, const json*> given;
    for (const json& input : node.at("inputs")) given[input.at("name").get<std::string>()] = &input.at("arg");
    for (const c10::Argument& required : step.op->schema().arguments()) {
      const auto found = given.find(required.name());
      if (found != given.end()) {
        step.arguments.push_back(read_argument(*found->second, &required, names_, device_));
        given.erase(found);
        continue;
      }
      TORCH_CHECK_VALUE(required.default_value(), "'", step.target, "' lacks the argument '", required.name(), "'");
      step.arguments.emplace_back();
      step.arguments.back().constant = *required.default_value();
    }
    TORCH_CHECK_VALUE(given.empty(), "'", step.target, "' has no argument '", given.begin()->first, "'");
  }

  void read_higher_order(const json& node, Step& step) {
    const std::string name = step.target.substr(kHigherOrder.size());
    TORCH_CHECK_NOT_IMPLEMENTED(name == "cond" || name == "wrap_with_set_grad_enabled", "the higher-order operator '",
                                name, "' is not done\n  have  module '", step.module(), "', ", step.line,
                                "\n  fix   export the model without it");
    step.kind = name == "cond" ? Step::Kind::kCond : Step::Kind::kSetGrad;
    for (const json& input : node.at("inputs")) {
      const json& argument = input.at("arg");
      if (argument.contains("as_graph")) {
        step.graphs.push_back(std::make_shared<SubGraph>(sub_graph(argument.at("as_graph").at("graph"))));
      } else {
        step.arguments.push_back(read_argument(argument, nullptr, names_, device_));
      }
    }
    TORCH_CHECK_VALUE(step.graphs.size() == (step.kind == Step::Kind::kCond ? 2 : 1) && !step.arguments.empty(), "'",
                      step.target, "' has ", step.graphs.size(), " graphs");
  }

  void read_outputs(const json& node, Step& step) {
    for (const json& output : node.at("outputs")) {
      const json& value = only_entry(output).second;
      std::vector<int> slots;
      const bool is_list = value.is_array();
      if (is_list) {
        for (const json& one : value) {
          const json& tensor = one.contains("as_tensor") ? one.at("as_tensor") : one;
          slots.push_back(names_.define(tensor.value("name", "")));
        }
      } else {
        slots.push_back(names_.define(name_of(output)));
      }
      step.outputs.push_back(std::move(slots));
      step.output_is_list.push_back(is_list);
    }
  }

  SlotNames& names_;
  const c10::Device& device_;
  std::map<std::string, std::string>& classes_;
};

void add_uses(const Argument& argument, std::vector<int>& used) {
  if (argument.slot != kNoSlot) used.push_back(argument.slot);
  for (const auto& [slot, value] : argument.elements) {
    if (slot != kNoSlot) used.push_back(slot);
  }
}

// Values are freed after the step that uses them last.
void find_last_uses(std::vector<Step>& steps, int slots, const std::vector<int>& kept) {
  std::vector<bool> seen(slots, false);
  for (const int slot : kept) seen[slot] = true;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    std::vector<int> used;
    for (const Argument& argument : step->arguments) add_uses(argument, used);
    for (const auto& results : step->outputs) {
      std::copy_if(results.begin(), results.end(), std::back_inserter(used), [](int slot) { return slot != kNoSlot; });
    }
    for (const int slot : used) {
      if (!seen[slot]) step->last_uses.push_back(slot);
      seen[slot] = true;
    }
  }
}

// "s77" of "Symbol('s77', positive=True, integer=True)"; "" for expressions of several symbols.
std::string symbol_in(const std::string& text) {
  constexpr std::string_view kSymbol = "Symbol('";
  const auto is_name = [](const std::string& word) {
    return std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isalnum(c) || c == '_'; });
  };
  if (!text.starts_with(kSymbol)) return is_name(text) ? text : "";
  const size_t end = text.find('\'', kSymbol.size());
  if (end == std::string::npos || text.find(')') + 1 != text.size()) return "";
  return text.substr(kSymbol.size(), end - kSymbol.size());
}

InputShape input_shape(const std::string& name, const json& tensors) {
  InputShape shape{name};
  if (!tensors.contains(name)) return shape;
  shape.is_tensor = true;
  for (const json& size : tensors.at(name).at("sizes")) {
    InputShape::Dim dim;
    if (size.contains("as_int")) {
      dim.size = size.at("as_int").get<int64_t>();
    } else {
      const std::string text = size.at("as_expr").at("expr_str").get<std::string>();
      dim.symbol = symbol_in(text);
    }
    shape.dims.push_back(dim);
  }
  return shape;
}

class GraphBuilder {
 public:
  GraphBuilder(const json& program, const Archive& archive, const c10::Device& device)
      : program_(program), archive_(archive), device_(device) {}

  Graph build() {
    const json& module = program_.at("graph_module");
    const json& graph = module.at("graph");
    const json& signature = module.at("signature");
    read_inputs(graph, signature.at("input_specs"));
    StepBuilder steps(names_, device_, graph_.classes);
    for (const json& node : graph.at("nodes")) steps.add(node, graph_.body.steps);
    read_outputs(graph, signature.at("output_specs"));
    for (const auto& [symbol, range] : program_.at("range_constraints").items()) {
      Range& made = graph_.ranges[symbol];
      if (!range.at("min_val").is_null()) made.min = range.at("min_val").get<int64_t>();
      if (!range.at("max_val").is_null()) made.max = range.at("max_val").get<int64_t>();
    }
    for (const json& entry : module.at("module_call_graph")) {
      if (entry.at("fqn") != "" || entry.at("signature").is_null()) continue;
      const json& call = entry.at("signature");
      graph_.input_spec = call.at("in_spec").get<std::string>();
      graph_.output_spec = call.at("out_spec").get<std::string>();
      if (call.contains("forward_arg_names") && !call.at("forward_arg_names").is_null())
        graph_.input_names = call.at("forward_arg_names").get<std::vector<std::string>>();
    }
    check_trees();
    graph_.body.slots = names_.count();
    std::vector<int> kept;
    for (const Argument& result : graph_.results) add_uses(result, kept);
    for (const auto& [slot, index] : graph_.buffer_writes) kept.push_back(slot);
    for (const auto& [slot, index] : graph_.input_writes) kept.push_back(slot);
    for (const int slot : graph_.input_slots) kept.push_back(slot);
    for (const int slot : graph_.tensor_slots) kept.push_back(slot);
    std::erase(kept, kNoSlot);
    find_last_uses(graph_.body.steps, graph_.body.slots, kept);
    return std::move(graph_);
  }

 private:
  void add_tensor(const json& spec, const char* name_key, ProgramTensor::Kind kind) {
    const std::string name = spec.at(name_key).get<std::string>();
    const auto found = archive_.tensors.find(name);
    TORCH_CHECK_VALUE(found != archive_.tensors.end(), "the file has no tensor '", name, "'");
    // Constants are in no registry, so plans do not give them values later.
    const bool is_constant = kind == ProgramTensor::Kind::kConstant;
    const at::Tensor tensor = is_constant ? materialize(found->second) : found->second;
    graph_.tensors.push_back({name, tensor, kind, spec.value("persistent", true)});
    graph_.tensor_slots.push_back(names_.define(spec.at("arg").at("name").get<std::string>()));
  }

  void read_inputs(const json& graph, const json& specs) {
    for (const json& spec : specs) {
      const auto& [kind, value] = only_entry(spec);
      if (kind == "parameter") {
        add_tensor(value, "parameter_name", ProgramTensor::Kind::kParameter);
      } else if (kind == "buffer") {
        add_tensor(value, "buffer_name", ProgramTensor::Kind::kBuffer);
      } else if (kind == "tensor_constant") {
        add_tensor(value, "tensor_constant_name", ProgramTensor::Kind::kConstant);
      } else if (kind == "user_input" || kind == "constant_input") {
        const std::string name =
            kind == "user_input" ? StepBuilder::name_of(value.at("arg")) : value.at("name").get<std::string>();
        graph_.inputs.push_back(input_shape(name, graph.at("tensor_values")));
        if (kind == "constant_input") {
          graph_.inputs.back().is_tensor = false;
          graph_.inputs.back().constant = read_argument(value.at("value"), nullptr, names_, device_).constant;
        }
        graph_.input_slots.push_back(names_.define(name));
      } else {
        TORCH_CHECK_NOT_IMPLEMENTED(false, "inputs of the kind '", kind, "' are not done");
      }
    }
  }

  void read_outputs(const json& graph, const json& specs) {
    const json& outputs = graph.at("outputs");
    TORCH_CHECK_VALUE(outputs.size() == specs.size(), "the program has ", outputs.size(), " outputs, its signature ",
                      specs.size());
    for (size_t i = 0; i < specs.size(); ++i) {
      const auto& [kind, value] = only_entry(specs[i]);
      const Argument result = read_argument(outputs[i], nullptr, names_, device_);
      if (kind == "user_output" || kind == "loss_output") {
        graph_.results.push_back(result);
      } else if (kind == "buffer_mutation" || kind == "parameter_mutation") {
        const std::string name =
            value.at(kind == "buffer_mutation" ? "buffer_name" : "parameter_name").get<std::string>();
        const auto found = std::ranges::find(graph_.tensors, name, &ProgramTensor::name);
        TORCH_CHECK_VALUE(found != graph_.tensors.end(), "the program writes '", name, "', which it does not have");
        graph_.buffer_writes.emplace_back(result.slot, found - graph_.tensors.begin());
      } else if (kind == "user_input_mutation") {
        const auto found =
            std::ranges::find(graph_.inputs, value.at("user_input_name").get<std::string>(), &InputShape::name);
        TORCH_CHECK_VALUE(found != graph_.inputs.end(), "the program writes an input that it does not have");
        graph_.input_writes.emplace_back(result.slot, found - graph_.inputs.begin());
      } else {
        TORCH_CHECK_NOT_IMPLEMENTED(false, "outputs of the kind '", kind, "' are not done");
      }
    }
  }

  // A program in C++ may lack the trees: it takes and gives flat lists.
  void check_trees() const {
    if (graph_.input_spec.empty()) return;
    const size_t given = count_leaves(graph_.input_spec, /*is_call=*/true);
    const size_t results = count_leaves(graph_.output_spec, /*is_call=*/false);
    TORCH_CHECK_VALUE(given == graph_.inputs.size() && results == graph_.results.size(), "the program has ",
                      graph_.inputs.size(), " inputs and ", graph_.results.size(), " results, its call ", given,
                      " and ", results);
  }

  const json& program_;
  const Archive& archive_;
  const c10::Device& device_;
  SlotNames names_;
  Graph graph_;
};

}  // namespace

Graph build_graph(const json& program, const Archive& archive, const c10::Device& device) {
  // A newer minor version adds fields that have defaults.
  const json& version = program.at("schema_version");
  const int64_t major = version.at("major").get<int64_t>(), minor = version.at("minor").get<int64_t>();
  TORCH_CHECK_NOT_IMPLEMENTED(
      major == 8, "the program has another schema of torch.export\n  have  ", major, ".", minor,
      ", and 8.x is read\n  fix   export it with PyTorch 2.11, or save the model as TorchScript");
  return GraphBuilder(program, archive, device).build();
}

}  // namespace moonhalo::exported
