// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/exported_program.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/imported/exported_graph.h"
#include "moonhalo/engine/imported/script_error.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::exported {
namespace {

using c10::IValue;
using Slots = std::vector<IValue>;

template <class List, class Convert>
IValue list_of(const Argument& argument, const Slots& slots, const Convert& convert) {
  List list;
  list.reserve(argument.elements.size());
  for (const auto& [slot, value] : argument.elements) list.push_back(convert(slot == kNoSlot ? value : slots[slot]));
  return list;
}

IValue as_number(const Argument& argument, const IValue& value) {
  if (argument.as_double && value.isInt()) return static_cast<double>(value.toInt());
  return value;
}

IValue value_of(const Argument& argument, const Slots& slots) {
  switch (argument.kind) {
    case Argument::Kind::kConstant:
      return argument.constant;
    case Argument::Kind::kSlot:
      return as_number(argument, slots[argument.slot]);
    case Argument::Kind::kNumberAsTensor: {
      if (slots[argument.slot].isTensor()) return slots[argument.slot];
      at::Tensor tensor = at::scalar_to_tensor(slots[argument.slot].toScalar());
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
      return tensor;
    }
    case Argument::Kind::kTensors:
      return list_of<c10::List<at::Tensor>>(argument, slots, [](const IValue& v) { return v.toTensor(); });
    case Argument::Kind::kOptionalTensors:
      return list_of<c10::List<std::optional<at::Tensor>>>(argument, slots, [](const IValue& v) {
        return v.isNone() ? std::optional<at::Tensor>() : std::optional<at::Tensor>(v.toTensor());
      });
    case Argument::Kind::kInts:
      return list_of<c10::List<int64_t>>(argument, slots, [](const IValue& v) { return v.toInt(); });
    case Argument::Kind::kFloats:
      return list_of<c10::List<double>>(argument, slots, [](const IValue& v) { return v.toScalar().toDouble(); });
    case Argument::Kind::kBools:
      return list_of<c10::List<bool>>(argument, slots, [](const IValue& v) { return v.toBool(); });
  }
  return IValue();
}

void store(const Step& step, Slots results, Slots& slots) {
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const std::vector<int>& required = step.outputs[i];
    if (!step.output_is_list[i]) {
      if (required[0] != kNoSlot) slots[required[0]] = std::move(results.at(i));
      continue;
    }
    const c10::ArrayRef<IValue> list = results.at(i).toListRef();
    TORCH_CHECK_VALUE(list.size() == required.size(), step.target, " gives ", list.size(),
                      " tensors, the program needs ", required.size());
    for (size_t k = 0; k < required.size(); ++k) {
      if (required[k] != kNoSlot) slots[required[k]] = list[k];
    }
  }
}

/// Tells others of the steps of a program while it runs: a recorder, to which modules begin and end as if they were
/// called, and a function that is called after each step.
class Watch {
 public:
  Watch(const std::string& root, const ExportedProgram::StepSeen& seen) : seen_(seen) {
    if (!hooks_are_on()) return;
    const Recorder* recorder = Recorder::of_this_rank();
    if (recorder == nullptr) return;
    records_ = true;
    if (recorder->module() == 0) {
      root_.emplace(root);
      return;
    }
    // A program that is part of another model.
    const RankRecord::Module& caller = recorder->record().modules[recorder->module()];
    if (caller.parent != 0) prefix_ = caller.name + ".";
  }
  ~Watch() { leave(0); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void begin(const Step& step) {
    if (records_) [[unlikely]]
      enter(placed(step).modules);
  }
  void end(const Step& step) {
    if (seen_) [[unlikely]]
      seen_(placed(step).module());
  }
  /// The step whose sub-graph runs, such as a branch of `cond`: steps within it may name no module.
  const Step* around = nullptr;
  /// The step that names the modules of `step`: itself, or the one around it.
  const Step& placed(const Step& step) const { return step.modules.empty() && around != nullptr ? *around : step; }

 private:
  struct Open {
    const std::string& call;  // of the graph
    std::unique_ptr<InModule> module;
  };
  void enter(const std::vector<ModuleCall>& modules) {
    size_t same = 0;
    while (same < open_.size() && same < modules.size() && open_[same].call == modules[same].call) ++same;
    leave(same);
    for (; same < modules.size(); ++same)
      open_.push_back({modules[same].call, std::make_unique<InModule>(prefix_ + modules[same].name)});
  }
  void leave(size_t kept) {
    while (open_.size() > kept) open_.pop_back();
  }

  const ExportedProgram::StepSeen& seen_;
  bool records_ = false;
  std::string prefix_;
  std::optional<InModule> root_;
  std::vector<Open> open_;
};

void run_steps(const std::vector<Step>& steps, Slots& slots, Watch& watch);

Slots run_sub_graph(const SubGraph& graph, const Slots& inputs, Watch& watch) {
  TORCH_CHECK_VALUE(inputs.size() == graph.inputs.size(), "a graph takes ", graph.inputs.size(), " values, got ",
                    inputs.size());
  Slots slots(graph.slots);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (graph.inputs[i] != kNoSlot) slots[graph.inputs[i]] = inputs[i];
  }
  run_steps(graph.steps, slots, watch);
  Slots results;
  for (const Argument& output : graph.outputs) results.push_back(value_of(output, slots));
  return results;
}

// The operands of a higher-order operator; lists of them are spread out.
Slots operands_of(const Step& step, const Slots& slots, size_t first) {
  Slots operands;
  for (size_t i = first; i < step.arguments.size(); ++i) {
    const IValue value = value_of(step.arguments[i], slots);
    if (!value.isList()) {
      operands.push_back(value);
      continue;
    }
    for (const IValue& one : value.toListRef()) operands.push_back(one);
  }
  return operands;
}

// Results in the form that the step's outputs have: one list, or one by one.
void store_flat(const Step& step, const Slots& results, Slots& slots) {
  size_t next = 0;
  for (const std::vector<int>& required : step.outputs) {
    for (const int slot : required) {
      if (slot != kNoSlot) slots[slot] = results.at(next);
      ++next;
    }
  }
}

void run_higher_order(const Step& step, Slots& slots, Watch& watch) {
  const ScopedValue inside(watch.around, &watch.placed(step));
  const IValue first = value_of(step.arguments[0], slots);
  const bool on = first.isTensor() ? first.toTensor().item<bool>() : first.toBool();
  if (step.kind == Step::Kind::kCond) {
    return store_flat(step, run_sub_graph(*step.graphs[on ? 0 : 1], operands_of(step, slots, 1), watch), slots);
  }
  const c10::AutoGradMode grad(on);
  store_flat(step, run_sub_graph(*step.graphs[0], operands_of(step, slots, 1), watch), slots);
}

void run_step(const Step& step, Slots& slots, Watch& watch) {
  Slots stack;
  stack.reserve(step.arguments.size() + 1);
  switch (step.kind) {
    case Step::Kind::kCond:
    case Step::Kind::kSetGrad:
      return run_higher_order(step, slots, watch);
    default:
      for (const Argument& argument : step.arguments) stack.push_back(value_of(argument, slots));
  }
  switch (step.kind) {
    case Step::Kind::kSize:
      return store(step, {stack.at(0).toTensor().size(stack.at(1).toInt())}, slots);
    case Step::Kind::kNumel:
      return store(step, {stack.at(0).toTensor().numel()}, slots);
    case Step::Kind::kNumber:
      return store(step, {compute_number(step.target, stack)}, slots);
    case Step::Kind::kAssert:
      TORCH_CHECK_VALUE(stack.at(0).toScalar().toBool(),
                        "a condition of the program does not hold: ", stack.at(1).toStringRef());
      return;
    default:
      step.op->callBoxed(stack);
      store(step, std::move(stack), slots);
  }
}

std::string place_of(const Step& step) {
  std::string text;
  if (!step.modules.empty()) text += "\n  module " + step.module();
  if (!step.line.empty()) text += "\n  model " + step.line;
  return text;
}

void run_steps(const std::vector<Step>& steps, Slots& slots, Watch& watch) {
  for (const Step& step : steps) {
    watch.begin(step);
    try {
      run_step(step, slots, watch);
    } catch (const std::exception&) {
      jit::rethrow_with(place_of(step));
    }
    watch.end(step);
    for (const int slot : step.last_uses) slots[slot] = IValue();
  }
}

void check_dim(const Graph& graph, const InputShape& input, size_t d, int64_t size,
               std::map<std::string, int64_t>& known) {
  const InputShape::Dim& dim = input.dims[d];
  TORCH_CHECK_VALUE(!dim.size || *dim.size == size, "export: '", input.name, "' has ", size, " in dim ", d,
                    ", the program was exported for ", dim.size.value_or(0),
                    "\n  fix   export it with dynamic_shapes for this dim");
  if (dim.symbol.empty()) return;
  const int64_t first = known.emplace(dim.symbol, size).first->second;
  TORCH_CHECK_VALUE(first == size, "export: '", input.name, "' has ", size, " in dim ", d, ", which must be ", first,
                    " as another dim of the inputs (", dim.symbol, ")");
  const auto range = graph.ranges.find(dim.symbol);
  if (range == graph.ranges.end()) return;
  TORCH_CHECK_VALUE(size >= range->second.min.value_or(size) && size <= range->second.max.value_or(size), "export: '",
                    input.name, "' has ", size, " in dim ", d, "\n  have  the program was exported for ",
                    range->second.min.value_or(0), " to ",
                    range->second.max ? std::to_string(*range->second.max) : "any size",
                    "\n  fix   export it with other dynamic_shapes");
}

void check_constant(const InputShape& required, const IValue& given) {
  const IValue& constant = *required.constant;
  const bool numbers = constant.isScalar() && given.isScalar() && !constant.isBool() && !given.isBool();
  const bool same = numbers ? constant.toScalar().equal(given.toScalar().toDouble()) : constant == given;
  TORCH_CHECK_VALUE(same, "export: '", required.name, "' is ", given, ", the program was exported for ", constant,
                    " alone", "\n  fix   export it with a tensor in this place");
}

void check_inputs(const Graph& graph, const std::vector<IValue>& inputs) {
  TORCH_CHECK_VALUE(inputs.size() == graph.inputs.size(), "export: the program takes ", graph.inputs.size(),
                    " inputs, got ", inputs.size());
  std::map<std::string, int64_t> known;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputShape& required = graph.inputs[i];
    if (required.constant) check_constant(required, inputs[i]);
    if (!required.is_tensor) continue;
    TORCH_CHECK_TYPE(inputs[i].isTensor(), "export: '", required.name, "' is not a tensor but ", inputs[i].tagKind());
    const at::Tensor& tensor = inputs[i].toTensor();
    TORCH_CHECK_VALUE(tensor.dim() == static_cast<int64_t>(required.dims.size()), "export: '", required.name, "' has ",
                      tensor.dim(), " dims, the program was exported for ", required.dims.size());
    for (size_t d = 0; d < required.dims.size(); ++d)
      check_dim(graph, required, d, tensor.size(static_cast<int64_t>(d)), known);
  }
}

void write_back(const at::Tensor& target, const IValue& value) {
  const at::NoGradGuard no_grad;
  const at::Tensor& source = value.toTensor();
  if (source.is_same(target)) return;
  const bool gather = is_shard_tensor(source) && !is_shard_tensor(target);
  at::Tensor(target).copy_(gather ? full_tensor(source) : source);
}

}  // namespace

ExportedProgram::ExportedProgram(const std::string& path, std::optional<c10::Device> device) {
  const auto refuse = [&path](const std::string& have) {
    TORCH_CHECK_VALUE(false, "export.load: '", path, "' holds no program that can be read\n  have  ",
                      have.substr(0, have.find('\n')),
                      "\n  fix   write one in Python: torch.export.save(torch.export.export(net, (x,)), path)");
  };
  const c10::Device place = device.value_or(c10::Device(c10::kCPU));
  const c10::impl::ExcludeDispatchKeyGuard made_now(kDeferredKey);  // but for those that read_archive defers
  try {
    const Archive archive = read_archive(path, place);
    graph_ = std::make_unique<Graph>(build_graph(nlohmann::json::parse(archive.program), archive, place));
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  } catch (const c10::NotImplementedError& error) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "export.load: '", path, "': ", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.starts_with("export.load: ")) throw;
    refuse(text.substr(0, text.find(". This is an internal miniz error")));
  }
}

ExportedProgram::~ExportedProgram() = default;

std::vector<ProgramTensor>& ExportedProgram::tensors() { return graph_->tensors; }
const std::map<std::string, std::string>& ExportedProgram::classes() const { return graph_->classes; }
const std::string& ExportedProgram::input_spec() const { return graph_->input_spec; }
const std::string& ExportedProgram::output_spec() const { return graph_->output_spec; }
const std::vector<std::string>& ExportedProgram::input_names() const { return graph_->input_names; }

std::vector<IValue> ExportedProgram::run(const std::vector<IValue>& inputs, const StepSeen& seen) const {
  check_inputs(*graph_, inputs);
  Slots slots(graph_->body.slots);
  for (size_t i = 0; i < graph_->tensors.size(); ++i) slots[graph_->tensor_slots[i]] = graph_->tensors[i].tensor;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (graph_->input_slots[i] != kNoSlot) slots[graph_->input_slots[i]] = inputs[i];
  }
  {
    const auto root = graph_->classes.find("");
    Watch watch(root != graph_->classes.end() ? root->second : "ExportedProgram", seen);
    run_steps(graph_->body.steps, slots, watch);
  }
  for (const auto& [slot, index] : graph_->buffer_writes) write_back(graph_->tensors[index].tensor, slots[slot]);
  for (const auto& [slot, index] : graph_->input_writes) write_back(inputs[index].toTensor(), slots[slot]);
  std::vector<IValue> results;
  for (const Argument& result : graph_->results) results.push_back(value_of(result, slots));
  return results;
}

}  // namespace moonhalo::exported
