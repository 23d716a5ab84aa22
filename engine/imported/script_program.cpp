// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/imported/script_program.h"

#include <ATen/core/builtin_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/compilation_unit.h>
#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/frontend/error_report.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/deferred/deferred_read.h"
#include "moonhalo/engine/imported/script_error.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::jit {
namespace {

torch::jit::Module load_script(const std::string& path, std::optional<c10::Device> device) {
  TORCH_CHECK_VALUE(std::filesystem::exists(path), "jit.load: no file '", path, "'");
  try {
    const c10::impl::ExcludeDispatchKeyGuard made_now(kDeferredKey);  // but for those that load_deferred defers
    if (const auto smallest = smallest_deferred(); smallest && device.value_or(c10::kCPU).is_cpu())
      return load_deferred(path, *smallest);
    return torch::jit::load(path, device);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const std::string have = text.substr(0, text.find(". This is an internal miniz error"));
    TORCH_CHECK_VALUE(false, "jit.load: '", path, "' holds no TorchScript module\n  have  ",
                      have.substr(0, have.find('\n')),
                      "\n  fix   write one in Python: torch.jit.script(net).save(path)");
  } catch (const torch::jit::ErrorReport& error) {
    const std::string text = error.what();
    const size_t begin = std::min(text.find_first_not_of('\n'), text.size());
    TORCH_CHECK_VALUE(false, "jit.load: '", path, "' has a program that LibTorch ", TORCH_VERSION,
                      " cannot compile\n  have  ", text.substr(begin, text.find('\n', begin) - begin),
                      "\n  fix   save it with this version of PyTorch, or export it with torch.export");
  }
}

void refuse_threads(const torch::jit::Block& block, const std::string& path) {
  for (const torch::jit::Node* node : block.nodes()) {
    const std::string kind = node->kind().toQualString();
    TORCH_CHECK_NOT_IMPLEMENTED(kind != "prim::fork" && kind != "prim::awaitable" && !kind.starts_with("prim::rpc"),
                                "jit.load: '", path, "' starts threads of its own (", kind,
                                "), whose calls would be in no order that ",
                                "ranks could agree on\n  fix   save the model without torch.jit.fork");
    for (const torch::jit::Block* inner : node->blocks()) refuse_threads(*inner, path);
  }
}

}  // namespace

struct ScriptProgram::Replaced {
  // While this exists, the types have the program's own forward.
  struct Undone {
    explicit Undone(const Replaced& replaced) : all(replaced) { exchange(); }
    ~Undone() { exchange(); }
    void exchange() {
      for (size_t i = 0; i < all.functions.size(); ++i) {
        torch::jit::Function* const ours = all.functions[i].get();
        c10::ClassType& type = *all.types[i];
        torch::jit::Function* const present = type.findMethod("forward");
        type.unsafeRemoveMethod("forward");
        type.addMethod(present == ours ? all.own.at(&type) : ours);
      }
    }
    const Replaced& all;
  };

  ForwardCall call;
  std::vector<c10::ClassTypePtr> types;  // one for each function
  std::vector<std::unique_ptr<torch::jit::BuiltinOpFunction>> functions;
  std::unordered_map<const c10::ClassType*, torch::jit::Function*> own;  // the program's forward
};

ScriptProgram::ScriptProgram(const std::string& path, std::optional<c10::Device> device)
    : replaced_(std::make_unique<Replaced>()), root_(load_script(path, device)) {
  for (torch::jit::Function* function : root_._ivalue()->compilation_unit()->get_functions()) {
    if (auto* graph = torch::jit::tryToGraphFunction(*function)) refuse_threads(*graph->graph()->block(), path);
  }
}

ScriptProgram::ScriptProgram(torch::jit::Module root)
    : replaced_(std::make_unique<Replaced>()), root_(std::move(root)) {}

ScriptProgram::~ScriptProgram() = default;

void ScriptProgram::save(const torch::jit::Module& module, const std::string& path, Communicator& world) const {
  struct Slot {
    c10::intrusive_ptr<c10::ivalue::Object> object;
    size_t slot;
    at::Tensor before;
  };
  std::vector<Slot> changed;
  const auto restore = [](std::vector<Slot>* slots) {
    for (const Slot& one : *slots) set_tensor(*one.object, one.slot, one.before);
  };
  const std::unique_ptr<std::vector<Slot>, decltype(restore)> at_end(&changed, restore);
  const at::NoGradGuard no_grad;
  for (const torch::jit::Module& one : module.modules()) {
    for (const TensorSlot& slot : tensor_slots(one)) {
      const at::Tensor tensor = one._ivalue()->getSlot(slot.slot).toTensor();
      if (!is_shard_tensor(tensor)) continue;
      changed.push_back({one._ivalue(), slot.slot, tensor});
      set_tensor(*one._ivalue(), slot.slot, full_tensor(tensor.detach()).requires_grad_(tensor.requires_grad()));
    }
  }
  fail_together(world, [&] {
    if (world.rank() != 0) return;
    const Replaced::Undone own(*replaced_);
    // A file that is half written never has the name.
    const std::string partial = path + ".partial";
    try {
      module.save(partial);
      std::filesystem::rename(partial, path);
    } catch (const std::exception& error) {
      const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
      const std::string problem = torch_error ? torch_error->what_without_backtrace() : error.what();
      TORCH_CHECK_VALUE(false, "save: '", path, "' cannot be written\n  have  ", problem.substr(0, problem.find('\n')));
    }
  });
}

void ScriptProgram::replace_forward_calls(ForwardCall call) {
  replaced_->call = std::move(call);
  for (const torch::jit::Module& module : root_.modules()) {
    const c10::ClassTypePtr type = module.type();
    torch::jit::Function* own = type->findMethod("forward");
    if (own == nullptr || replaced_->own.contains(type.get()) || !own->isGraphFunction()) continue;
    replaced_->own.emplace(type.get(), own);
    const size_t count = own->getSchema().arguments().size();
    const auto run = [replaced = replaced_.get(), count](torch::jit::Stack& stack) {
      Values arguments(stack.end() - static_cast<int64_t>(count), stack.end());
      stack.resize(stack.size() - count);
      const torch::jit::Module called(arguments[0].toObject());
      arguments.erase(arguments.begin());
      try {
        stack.push_back(replaced->call(called, std::move(arguments)));
      } catch (...) {
        KeptError::keep();
        throw;
      }
    };
    replaced_->functions.push_back(
        std::make_unique<torch::jit::BuiltinOpFunction>(own->qualname(), own->getSchema(), run));
    replaced_->types.push_back(type);
    type->unsafeRemoveMethod("forward");
    type->addMethod(replaced_->functions.back().get());
  }
}

torch::jit::Function& ScriptProgram::method_of(const torch::jit::Module& module, const std::string& method) const {
  const c10::ClassTypePtr type = module.type();
  const auto own = replaced_->own.find(type.get());
  if (method == "forward" && own != replaced_->own.end()) return *own->second;
  torch::jit::Function* found = type->findMethod(method);
  if (found == nullptr) {
    std::vector<std::string> known;
    for (const torch::jit::Function* one : type->methods()) known.push_back(one->name());
    TORCH_CHECK_VALUE(false, class_name(module), ": the TorchScript module has no method '", method, "'",
                      did_you_mean(method, known));
  }
  return *found;
}

c10::IValue ScriptProgram::run(const torch::jit::Module& module, const std::string& method, Values arguments,
                               const NamedValues& named) const {
  torch::jit::Function& function = method_of(module, method);
  torch::jit::Stack stack{module._ivalue()};
  for (c10::IValue& argument : arguments) stack.push_back(std::move(argument));
  function.getSchema().checkAndNormalizeInputs(stack, named);
  const torch::jit::GraphOptimizerEnabledGuard unoptimized(false);
  const KeptError kept;
  try {
    function.run(stack);
  } catch (const std::exception& error) {
    const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
    const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
    if (!is_script_error(text)) throw;
    throw_with_model_line(kept, text);
  }
  return std::move(stack.front());
}

const c10::FunctionSchema& ScriptProgram::schema(const torch::jit::Module& module, const std::string& method) const {
  return method_of(module, method).getSchema();
}

std::vector<TensorSlot> tensor_slots(const torch::jit::Module& module) {
  std::vector<TensorSlot> slots;
  const c10::ClassTypePtr type = module.type();
  for (size_t i = 0; i < type->numAttributes(); ++i) {
    const bool is_parameter = type->is_parameter(i);
    if (!is_parameter && !type->is_buffer(i)) continue;
    if (module._ivalue()->getSlot(i).isTensor()) slots.push_back({type->getAttributeName(i), i, is_parameter});
  }
  return slots;
}

void set_tensor(c10::ivalue::Object& object, size_t slot, const at::Tensor& tensor) {
  const c10::IValue before = object.getSlot(slot);
  object.setSlot(slot, tensor);
  if (!before.isTensor() || !before.toTensor().defined()) return;
  for (const c10::IValue& value : object.slots()) {
    if (!value.isTensorList()) continue;
    c10::List<at::Tensor> list = value.toTensorList();
    for (size_t i = 0; i < list.size(); ++i) {
      if (list.get(i).is_same(before.toTensor())) list.set(i, tensor);
    }
  }
}

std::vector<std::pair<std::string, torch::jit::Module>> child_modules(const torch::jit::Module& module) {
  std::vector<std::pair<std::string, torch::jit::Module>> children;
  for (const auto& child : module.named_children()) children.emplace_back(child.name, child.value);
  return children;
}

std::string class_name(const torch::jit::Module& module) {
  const auto name = module.type()->name();
  return name ? name->name() : "ScriptModule";
}

void set_training(const torch::jit::Module& module, bool on) {
  const auto slot = module.type()->findAttributeSlot("training");
  if (slot && module._ivalue()->getSlot(*slot).isBool()) module._ivalue()->setSlot(*slot, on);
}

}  // namespace moonhalo::jit
