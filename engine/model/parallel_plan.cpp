// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/parallel_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/model/name_pattern.h"
#include "moonhalo/engine/model/pairwise_style.h"

namespace moonhalo {
namespace {

constexpr const char* kOp = "parallelize_module: ";

// Names

std::string listing(const std::vector<std::string>& names) {
  constexpr size_t kShown = 12;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) text += (i ? ", " : "") + ("'" + names[i] + "'");
  return names.size() > kShown ? text + ", ..." : text;
}

void report_unmatched(const std::string& pattern, const char* what, const std::vector<std::string>& names,
                      const DeviceMesh& mesh, Unmatched unmatched) {
  const NoMatch found = explain_no_match(pattern, names);
  const std::string message =
      std::string(kOp) + "'" + pattern + "' matches no " + what + found.nearest + "\n  have  " + found.have;
  TORCH_CHECK_VALUE(unmatched == Unmatched::kWarn, message, "\n  fix   ", found.fix, ", or unmatched = \"warn\"");
  if (mesh.rank() == 0) TORCH_WARN(message);
}

// The entry for every name: index into `entries` or -1.
template <class Value>
std::vector<int64_t> match(const std::vector<std::pair<std::string, Value>>& entries,
                           const std::vector<std::string>& names, const char* what, const DeviceMesh& mesh,
                           Unmatched unmatched) {
  std::vector<std::string> patterns;
  for (const auto& [text, value] : entries) patterns.push_back(text);
  const NameMatches found = match_names(patterns, names);
  for (const auto& [n, first, second] : found.ties) {
    TORCH_CHECK_VALUE(entries[first].second == entries[second].second, kOp, "'", patterns[first], "' and '",
                      patterns[second], "' both match ", what, " '", names[n],
                      "' and differ\n  fix   give the exact name an entry of its own");
  }
  for (size_t e = 0; e < entries.size(); ++e) {
    if (!found.used[e]) report_unmatched(patterns[e], what, names, mesh, unmatched);
  }
  return found.meant;
}

std::string full(const std::string& module, const std::string& tensor) {
  return module.empty() ? tensor : module + "." + tensor;
}

// Placements

void check_count(const Placements& placements, const DeviceMesh& mesh, const std::string& where) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(placements.size()) == mesh.ndim(), kOp, where, " has ", placements.size(),
                    " placements for ", mesh.to_string(), ", which has ", mesh.ndim(), " dimensions",
                    "\n  fix   give one placement per mesh dimension");
}

void check_arguments(const SignaturePlan& plan, const DeviceMesh& mesh, const std::string& where) {
  const auto check = [&](const ArgumentPlan& argument) {
    if (argument.plain) check_count(*argument.plain, mesh, where);
    if (argument.required) check_count(*argument.required, mesh, where);
    if (argument.gradient) check_count(*argument.gradient, mesh, "the gradient of " + where);
  };
  for (const auto& argument : plan.by_position) {
    if (argument) check(*argument);
  }
  for (const auto& [name, argument] : plan.by_name) check(argument);
}

void check_tensor(const Placements& placements, const TensorFacts& tensor, const DeviceMesh& mesh,
                  const std::string& name) {
  check_count(placements, mesh, "'" + name + "'");
  const auto ndim = static_cast<int64_t>(tensor.shape.size());
  for (const Placement& placement : placements) {
    TORCH_CHECK_VALUE(!placement.is_partial(), kOp, "'", name, "' cannot be ", placement.to_string(),
                      "\n  fix   use Shard or Replicate for parameters and buffers");
    TORCH_CHECK_VALUE(!placement.is_shard() || (placement.dim >= -ndim && placement.dim < ndim), kOp, "'", name,
                      "' cannot be ", placement.to_string(), ", its shape is ", shape_string(tensor.shape));
  }
}

// Styles

bool is_kind(const ModuleFacts& module, const char* kind) {
  return std::find(module.kinds.begin(), module.kinds.end(), kind) != module.kinds.end();
}

std::string quoted(const ModuleFacts& module) {
  const std::string kind = module.kinds.empty() ? "module" : module.kinds.front();
  return module.name.empty() ? "the root, a " + kind + "," : "'" + module.name + "', a " + kind + ",";
}

class StyleResolver {
 public:
  StyleResolver(const ParallelStyle& style, const ModuleFacts& module, const std::vector<ModuleFacts>& all,
                const DeviceMesh& mesh, ModulePlan& plan)
      : style_(style), module_(module), all_(all), mesh_(mesh), plan_(plan) {}

  void run() {
    using Kind = ParallelStyle::Kind;
    TORCH_CHECK_VALUE(mesh_.ndim() == 1, kOp, "parallel styles are for a mesh of one dimension, got ",
                      mesh_.to_string(), "\n  fix   give a slice of it, as that of \"", mesh_.names().back(),
                      "\"; for tensors on the whole mesh give a plan of placements, one for each dim");
    switch (style_.kind) {
      case Kind::kColwise:
        return colwise();
      case Kind::kRowwise:
        return rowwise();
      case Kind::kPairwise:
        TORCH_INTERNAL_ASSERT(false, "pair_layers has not been called");
      case Kind::kSequence: {
        const Placement cut = shard(style_.sequence_dim);
        plan_.inputs.by_position = {ArgumentPlan{Placements{cut}, Placements{cut}}};
        plan_.outputs.by_position = {ArgumentPlan{Placements{cut}, {}, style_.use_local_output.value_or(false)}};
        return;
      }
      case Kind::kPrepareInput:
        return prepare_input();
      case Kind::kPrepareOutput: {
        plan_.outputs.by_position = pairs("PrepareModuleOutput", "output", style_.output_layouts,
                                          style_.desired_output_layouts, style_.use_local_output.value_or(true));
        return;
      }
      case Kind::kCustom:
        plan_.custom.push_back(style_.custom);
        return;
    }
  }

 private:
  void colwise() {
    check_class();
    const bool linear = is_kind(module_, "Linear");
    place("weight", shard(linear ? 0 : 1));
    if (linear) place("bias", shard(0));
    pass(one(style_.input_layouts, replicate()), one(style_.desired_input_layouts, replicate()),
         one(style_.output_layouts, shard(-1)));
  }

  void rowwise() {
    check_class();
    const bool linear = is_kind(module_, "Linear");
    place("weight", shard(linear ? 1 : 0));
    Placement input = one(style_.input_layouts, shard(-1));
    Placement required = one(style_.desired_input_layouts, linear ? shard(-1) : replicate());
    for (const TensorFacts& tensor : module_.tensors) {
      if (!linear || tensor.name != "weight") continue;
      // Features are cut as the weight is, so that the plan need not say it.
      for (Placement* placement : {&input, &required}) {
        if (placement->is_shard() && placement->dim == -1 && placement->sizes.empty()) {
          placement->sizes = balanced_sizes(tensor.shape.at(1), mesh_.size(0));
        }
      }
    }
    pass(input, required, one(style_.output_layouts, replicate()));
  }

  void prepare_input() {
    const bool local = style_.use_local_output.value_or(false);
    TORCH_CHECK_VALUE(style_.input_layouts || !style_.input_kwarg_layouts.empty(), kOp, "PrepareModuleInput of ",
                      quoted(module_), " has neither input_layouts nor input_kwarg_layouts");
    if (style_.input_layouts) {
      plan_.inputs.by_position =
          pairs("PrepareModuleInput", "input", style_.input_layouts, style_.desired_input_layouts, local);
    }
    const auto &given = style_.input_kwarg_layouts, &desired = style_.desired_input_kwarg_layouts;
    TORCH_CHECK_VALUE(given.size() == desired.size(), kOp, "PrepareModuleInput of ", quoted(module_), " has ",
                      given.size(), " input_kwarg_layouts and ", desired.size(), " desired_input_kwarg_layouts");
    for (const auto& [name, layout] : given) {
      const auto required = desired.find(name);
      TORCH_CHECK_VALUE(required != desired.end(), kOp, "PrepareModuleInput of ", quoted(module_),
                        " has no desired_input_kwarg_layouts for '", name, "'");
      if (layout || required->second) plan_.inputs.by_name[name] = argument(layout, required->second, local);
    }
  }

  void check_class() const {
    if (is_kind(module_, "Linear") || is_kind(module_, "Embedding")) return;
    std::vector<std::string> inside;
    const std::string prefix = module_.name.empty() ? "" : module_.name + ".";
    for (const ModuleFacts& other : all_) {
      const bool below = other.name.size() > prefix.size() && other.name.compare(0, prefix.size(), prefix) == 0;
      if (below && (is_kind(other, "Linear") || is_kind(other, "Embedding"))) inside.push_back(other.name);
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, kOp, name(style_.kind), " splits Linear and Embedding, not ", quoted(module_), " as a whole\n  fix   ",
        inside.empty() ? std::string() : "name what is inside it (" + listing(inside) + "), or ",
        "place its parameters with {parameter = {...}, forward = {...}}");
  }

  void place(const char* tensor, const Placement& placement) {
    const auto slot = plan_.tensors.find(tensor);
    if (slot == plan_.tensors.end()) return;  // a layer without bias
    slot->second = {.placements = {placement}, .listed = true};
  }

  void pass(const Placement& input, const Placement& required, const Placement& output) {
    plan_.inputs.by_position = {ArgumentPlan{Placements{input}, Placements{required}}};
    plan_.outputs.by_position = {
        ArgumentPlan{Placements{output}, Placements{output}, style_.use_local_output.value_or(true)}};
  }

  Placement one(const std::optional<ParallelStyle::Layouts>& layouts, const Placement& otherwise) const {
    if (!layouts) return otherwise;
    TORCH_CHECK_VALUE(layouts->size() == 1 && layouts->front(), kOp, name(style_.kind), " of ", quoted(module_),
                      " takes one layout, got a list of ", layouts->size());
    return *layouts->front();
  }

  static ArgumentPlan argument(const std::optional<Placement>& plain, const std::optional<Placement>& required,
                               bool local) {
    ArgumentPlan made;
    if (plain) made.plain = Placements{*plain};
    if (required) made.required = Placements{*required};
    made.local = local;
    return made;
  }

  std::vector<std::optional<ArgumentPlan>> pairs(const char* style, const std::string& side,
                                                 const std::optional<ParallelStyle::Layouts>& given,
                                                 const std::optional<ParallelStyle::Layouts>& desired,
                                                 bool local) const {
    TORCH_CHECK_VALUE(given && desired, kOp, style, " of ", quoted(module_), " needs both ", side,
                      "_layouts and desired_", side, "_layouts");
    TORCH_CHECK_VALUE(given->size() == desired->size(), kOp, style, " of ", quoted(module_), " has ", given->size(),
                      " ", side, "_layouts and ", desired->size(), " desired_", side, "_layouts");
    std::vector<std::optional<ArgumentPlan>> made;
    for (size_t i = 0; i < given->size(); ++i) {
      made.push_back((*given)[i] || (*desired)[i] ? std::optional(argument((*given)[i], (*desired)[i], local))
                                                  : std::nullopt);
    }
    return made;
  }

  const ParallelStyle& style_;
  const ModuleFacts& module_;
  const std::vector<ModuleFacts>& all_;
  const DeviceMesh& mesh_;
  ModulePlan& plan_;
};

}  // namespace

const char* name(ParallelStyle::Kind kind) {
  static constexpr const char* kNames[] = {
      "ColwiseParallel",     "RowwiseParallel", "PairwiseParallel", "SequenceParallel", "PrepareModuleInput",
      "PrepareModuleOutput", "custom"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<ModulePlan> resolve(const ParallelPlan& plan, const std::vector<ModuleFacts>& modules,
                                const DeviceMesh& mesh, Unmatched unmatched) {
  std::vector<std::string> module_names, tensor_names;
  for (const ModuleFacts& module : modules) {
    module_names.push_back(module.name);
    for (const TensorFacts& tensor : module.tensors) {
      tensor_names.push_back(full(module.name, tensor.name));
    }
  }
  const auto styles = match(plan.styles, module_names, "module", mesh, unmatched);
  const auto inputs = match(plan.inputs, module_names, "module", mesh, unmatched);
  const auto outputs = match(plan.outputs, module_names, "module", mesh, unmatched);
  const auto tensors = match(plan.parameters, tensor_names, "parameter", mesh, unmatched);
  const auto gradients = match(plan.gradients, tensor_names, "parameter", mesh, unmatched);

  std::vector<std::optional<ParallelStyle>> style_of(modules.size());
  for (size_t i = 0; i < modules.size(); ++i) {
    if (styles[i] >= 0) style_of[i] = plan.styles[styles[i]].second;
  }
  pair_layers(style_of, modules);

  std::vector<ModulePlan> resolved(modules.size());
  size_t next = 0;
  for (size_t i = 0; i < modules.size(); ++i) {
    const ModuleFacts& module = modules[i];
    ModulePlan& made = resolved[i];
    for (const TensorFacts& tensor : module.tensors) made.tensors[tensor.name] = {Placements(mesh.ndim(), replicate())};
    if (style_of[i]) StyleResolver(*style_of[i], module, modules, mesh, made).run();
    if (inputs[i] >= 0) made.inputs = plan.inputs[inputs[i]].second;
    if (outputs[i] >= 0) made.outputs = plan.outputs[outputs[i]].second;
    check_arguments(made.inputs, mesh, "the input of " + quoted(module));
    check_arguments(made.outputs, mesh, "the output of " + quoted(module));
    for (const TensorFacts& tensor : module.tensors) {
      const std::string& full_name = tensor_names[next];
      const int64_t entry = tensors[next], gradient = gradients[next];
      ++next;
      ModulePlan::Tensor& placed = made.tensors[tensor.name];
      if (entry >= 0) placed = {.placements = plan.parameters[entry].second, .listed = true};
      check_tensor(placed.placements, tensor, mesh, full_name);
      if (gradient < 0) continue;
      placed.gradient = plan.gradients[gradient].second;
      check_count(*placed.gradient, mesh, "the gradient of '" + full_name + "'");
    }
  }
  return resolved;
}

ParallelPlan spelt_out(const std::vector<ModulePlan>& resolved, const std::vector<ModuleFacts>& modules) {
  ParallelPlan plan;
  for (size_t i = 0; i < modules.size(); ++i) {
    const std::string& name = modules[i].name;
    for (const TensorFacts& facts : modules[i].tensors) {
      const ModulePlan::Tensor& tensor = resolved[i].tensors.at(facts.name);
      const std::string full_name = full(name, facts.name);
      if (tensor.listed) plan.parameters.emplace_back(full_name, tensor.placements);
      if (tensor.gradient) plan.gradients.emplace_back(full_name, *tensor.gradient);
    }
    if (!resolved[i].inputs.empty()) plan.inputs.emplace_back(name, resolved[i].inputs);
    if (!resolved[i].outputs.empty()) plan.outputs.emplace_back(name, resolved[i].outputs);
  }
  return plan;
}

}  // namespace moonhalo
