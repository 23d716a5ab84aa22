// SPDX-License-Identifier: Apache-2.0
// TorchScript modules as torch::nn modules.
#include "moonhalo/engine/imported/script_module.h"

#include <c10/util/Exception.h>

#include <unordered_map>
#include <utility>

#include "moonhalo/engine/imported/script_program.h"

namespace moonhalo::jit {

struct ScriptModule::State {
  struct Link {
    TensorSlot slot;
    at::Tensor tensor;  // in the slot and in the registry, unless one of them was replaced since
  };

  // The state that all modules of one file share.
  struct File {
    explicit File(const std::string& path, std::optional<c10::Device> device) : program(path, device) {}
    ScriptProgram program;
    std::unordered_map<const c10::ivalue::Object*, ScriptModule*> modules = {};  // those that exist
    bool running = false;
  };

  std::shared_ptr<File> file;
  torch::jit::Module script;
  std::vector<Link> links = {};
  std::vector<ScriptModule*> children = {};

  using Made = std::unordered_map<const c10::ivalue::Object*, std::shared_ptr<ScriptModule>>;
  static std::shared_ptr<ScriptModule> make(const std::shared_ptr<File>& file, const torch::jit::Module& script,
                                            Made& made);
  static void give_tensors(ScriptModule& module);
  static void take_tensors(const File& file);
  static c10::IValue call_child(const File& file, const torch::jit::Module& script, std::vector<c10::IValue> arguments);
};

std::shared_ptr<ScriptModule> ScriptModule::State::make(const std::shared_ptr<File>& file,
                                                        const torch::jit::Module& script, Made& made) {
  const c10::ivalue::Object* object = script._ivalue().get();
  if (const auto before = made.find(object); before != made.end()) return before->second;
  const auto result = std::make_shared<ScriptModule>(std::unique_ptr<State>(new State{file, script}));
  made.emplace(object, result);
  file->modules.emplace(object, result.get());
  State& state = *result->state_;
  for (const TensorSlot& slot : tensor_slots(script)) {
    const at::Tensor tensor = script._ivalue()->getSlot(slot.slot).toTensor();
    if (slot.is_parameter) {
      result->register_parameter(slot.name, tensor, tensor.requires_grad());
    } else {
      result->register_buffer(slot.name, tensor);
    }
    state.links.push_back({slot, tensor});
  }
  for (const auto& [name, child] : child_modules(script)) {
    const std::shared_ptr<ScriptModule> below = make(file, child, made);
    result->register_module(name, below);
    state.children.push_back(below.get());
  }
  return result;
}

// Gives the program the tensors that were replaced in the registries of `module` and its children.
void ScriptModule::State::give_tensors(ScriptModule& module) {
  for (Link& link : module.state_->links) {
    const at::Tensor& registered = detail::registered_tensor(module, link.slot.name, link.slot.is_parameter);
    if (registered.is_same(link.tensor)) continue;
    set_tensor(*module.state_->script._ivalue(), link.slot.slot, registered);
    link.tensor = registered;
  }
  for (ScriptModule* child : module.state_->children) give_tensors(*child);
}

// Enters the tensors that the program assigned to parameters and buffers in the registries.
void ScriptModule::State::take_tensors(const File& file) {
  for (const auto& [object, module] : file.modules) {
    for (Link& link : module->state_->links) {
      const c10::IValue& assigned = object->getSlot(link.slot.slot);
      if (!assigned.isTensor() || assigned.toTensor().is_same(link.tensor)) continue;
      link.tensor = assigned.toTensor();
      detail::registered_tensor(*module, link.slot.name, link.slot.is_parameter) = link.tensor;
    }
  }
}

c10::IValue ScriptModule::State::call_child(const File& file, const torch::jit::Module& script,
                                            std::vector<c10::IValue> arguments) {
  ScriptModule& child = *file.modules.at(script._ivalue().get());
  const auto run = [&](std::vector<c10::IValue> given) {
    return file.program.run(script, "forward", std::move(given));
  };
  if (arguments.empty() || !arguments[0].isTensor()) return run(std::move(arguments));
  // Hooks see the first argument and the first result, as in `moonhalo::call`.
  c10::IValue result;
  const at::Tensor first = detail::call_module(child, arguments[0].toTensor(), [&](const at::Tensor& inside) {
    std::vector<c10::IValue> given = arguments;
    given[0] = inside;
    result = run(std::move(given));
    return result.isTensor() ? result.toTensor() : at::Tensor();
  });
  if (result.isTensor() || first.defined()) result = first;
  return result;
}

ScriptModule::ScriptModule(std::unique_ptr<State> state)
    : Module(class_name(state->script)), state_(std::move(state)) {}
ScriptModule::~ScriptModule() { state_->file->modules.erase(state_->script._ivalue().get()); }

at::Tensor ScriptModule::forward(const at::Tensor& input) {
  const c10::IValue result = run({input});
  TORCH_CHECK_TYPE(result.isTensor(), name(), ": forward gives ", result.tagKind(),
                   ", not one tensor\n  fix   call run({x})");
  return result.toTensor();
}

c10::IValue ScriptModule::run(std::vector<c10::IValue> arguments, const std::string& method) {
  State::give_tensors(*this);
  State::File& file = *state_->file;
  const bool outermost = !std::exchange(file.running, true);
  const auto end = [&] {
    if (!outermost) return;
    file.running = false;
    State::take_tensors(file);
  };
  try {
    c10::IValue result = file.program.run(state_->script, method, std::move(arguments));
    end();
    return result;
  } catch (...) {
    end();
    throw;
  }
}

void ScriptModule::train(bool on) {
  Module::train(on);
  set_training(state_->script, on);
}

std::shared_ptr<ScriptModule> load(const std::string& path, std::optional<c10::Device> device) {
  const auto file = std::make_shared<ScriptModule::State::File>(path, device);
  ScriptModule::State::Made made;
  file->program.replace_forward_calls(
      [its = file.get()](const torch::jit::Module& script, std::vector<c10::IValue> arguments) {
        return ScriptModule::State::call_child(*its, script, std::move(arguments));
      });
  return ScriptModule::State::make(file, file->program.root(), made);
}

}  // namespace moonhalo::jit
