// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/torch_module_tree.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "moonhalo/engine/model/registered_tensor.h"

namespace moonhalo {
namespace {

namespace nn = torch::nn;

// LibTorch registers tensors once and offers no way to put another in their place: `buffers_` is private. An explicit
// instantiation may name a private member, so this stays within the language.
template <auto kMember>
struct Opened {
  friend torch::OrderedDict<std::string, at::Tensor>& buffers_of(nn::Module& module) { return module.*kMember; }
};
template struct Opened<&nn::Module::buffers_>;
torch::OrderedDict<std::string, at::Tensor>& buffers_of(nn::Module& module);

struct Parameters : nn::Module {
  static torch::OrderedDict<std::string, at::Tensor>& of(nn::Module& module) {
    return module.*(&Parameters::parameters_);
  }
};

// Member variables

template <class Module>
void add_members(nn::Module& module, std::vector<at::Tensor*>& members, bool& known) {
  auto* m = dynamic_cast<Module*>(&module);
  if (m == nullptr) return;
  known = true;
  if constexpr (requires { m->weight; }) members.push_back(&m->weight);
  if constexpr (requires { m->bias; }) members.push_back(&m->bias);
  if constexpr (requires { m->running_mean; }) {
    members.insert(members.end(), {&m->running_mean, &m->running_var, &m->num_batches_tracked});
  }
  if constexpr (requires { m->in_proj_weight; }) {
    members.insert(members.end(), {&m->in_proj_weight, &m->in_proj_bias, &m->bias_k, &m->bias_v, &m->q_proj_weight,
                                   &m->k_proj_weight, &m->v_proj_weight});
  }
}

template <class... Modules>
bool members_of(nn::Module& module, std::vector<at::Tensor*>& members) {
  bool known = false;
  (add_members<Modules>(module, members, known), ...);
  return known;
}

std::mutex declared_mutex;
std::vector<detail::Members>& declared() {
  static std::vector<detail::Members> all;
  return all;
}

// Finds the tensors that a module keeps outside the registry. False for a class that was not described.
bool find_members(nn::Module& module, std::vector<at::Tensor*>& members) {
  bool known = members_of<nn::LinearImpl, nn::BilinearImpl, nn::EmbeddingImpl, nn::EmbeddingBagImpl, nn::Conv1dImpl,
                          nn::Conv2dImpl, nn::Conv3dImpl, nn::ConvTranspose1dImpl, nn::ConvTranspose2dImpl,
                          nn::ConvTranspose3dImpl, nn::LayerNormImpl, nn::GroupNormImpl, nn::BatchNorm1dImpl,
                          nn::BatchNorm2dImpl, nn::BatchNorm3dImpl, nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl,
                          nn::InstanceNorm3dImpl, nn::PReLUImpl, nn::MultiheadAttentionImpl>(module, members);
  known |= dynamic_cast<const detail::HasRegisteredTensorsAlone*>(&module) != nullptr;
  const std::lock_guard lock(declared_mutex);
  for (const auto& of : declared()) {
    const auto found = of(module);
    known |= !found.empty();
    members.insert(members.end(), found.begin(), found.end());
  }
  return known;
}

std::string class_name(const nn::Module& module) {
  std::string name = module.name();
  if (const size_t colon = name.rfind("::"); colon != std::string::npos) name = name.substr(colon + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

// Calls

/// The hooks and wrappers of one module.
struct ModuleCalls {
  std::weak_ptr<const nn::Module> module;
  std::map<int64_t, CallHooks> hooks = {};  // by the order of add_call_hooks
  std::map<int64_t, ForwardWrapper> wrappers = {};
  int64_t added = 0;
  std::shared_ptr<const Parallelized> parallelized = nullptr;
};
using ModuleCallsPtr = std::shared_ptr<ModuleCalls>;

// Ranks may be threads of one process; each has its own modules.
std::mutex calls_mutex;
std::unordered_map<const nn::Module*, ModuleCallsPtr>& all_calls() {
  static std::unordered_map<const nn::Module*, ModuleCallsPtr> all;
  return all;
}

// Null if nothing runs around the calls of this module.
ModuleCallsPtr find_calls(const nn::Module& module) {
  const std::lock_guard lock(calls_mutex);
  const auto found = all_calls().find(&module);
  if (found == all_calls().end()) return nullptr;
  if (!found->second->module.expired()) return found->second;
  all_calls().erase(found);  // another module had this address
  return nullptr;
}

ModuleCallsPtr calls_of(nn::Module& module) {
  if (ModuleCallsPtr found = find_calls(module)) return found;
  const auto made = std::make_shared<ModuleCalls>(ModuleCalls{module.shared_from_this()});
  const std::lock_guard lock(calls_mutex);
  std::erase_if(all_calls(), [](const auto& entry) { return entry.second->module.expired(); });
  all_calls()[&module] = made;
  return made;
}

// Nullopt for a module that is not a Sequential.
std::optional<at::Tensor> call_children(nn::Module& module, const at::Tensor& input) {
  auto* sequential = dynamic_cast<nn::SequentialImpl*>(&module);
  if (sequential == nullptr) return std::nullopt;
  at::Tensor value = input;
  for (nn::AnyModule& child : *sequential) {
    value = detail::call_module(*child.ptr(), value, [&](const at::Tensor& x) { return child.forward<at::Tensor>(x); });
  }
  return value;
}

// The tree

class TorchModuleTree : public ModuleTree {
 public:
  explicit TorchModuleTree(std::shared_ptr<nn::Module> module) : module_(std::move(module)) {}

  const void* identity() const override { return module_.get(); }
  std::vector<std::string> kinds() const override { return {class_name(*module_)}; }

  std::vector<Child> children() const override {
    std::vector<Child> all;
    for (const auto& child : module_->named_children()) {
      all.push_back({child.key(), std::make_shared<TorchModuleTree>(child.value())});
    }
    return all;
  }

  std::vector<Tensor> tensors() const override {
    std::vector<Tensor> all;
    for (auto* registry : {&Parameters::of(*module_), &buffers_of(*module_)}) {
      const bool is_parameter = registry == &Parameters::of(*module_);
      for (const auto& slot : *registry) {
        if (slot.value().defined()) all.push_back({slot.key(), slot.value(), is_parameter});
      }
    }
    return all;
  }

  void replace_tensor(const std::string& name, const at::Tensor& tensor) override {
    auto& registry = Parameters::of(*module_).contains(name) ? Parameters::of(*module_) : buffers_of(*module_);
    at::Tensor& slot = registry[name];
    std::vector<at::Tensor*> members;
    find_members(*module_, members);
    for (at::Tensor* member : members) {
      if (member->is_same(slot)) *member = tensor;
    }
    slot = tensor;
  }

  std::string why_fixed(const std::string& tensor) const override {
    std::vector<at::Tensor*> members;
    if (find_members(*module_, members)) return "";
    const std::string name = class_name(*module_);
    return "it is not known where " + name +
           " keeps it\n  have  a module class that is not LibTorch's own\n  fix   moonhalo::declare_members<" + name +
           "Impl>([](auto& m) { return std::vector<at::Tensor*>{&m." + tensor + "}; }) before this call";
  }

  // A plan for one unnamed tensor is all that `call` can carry out.
  void check_signature(const std::string& name, const SignaturePlan& inputs,
                       const SignaturePlan& outputs) const override {
    for (const SignaturePlan* plan : {&inputs, &outputs}) {
      const char* side = plan == &inputs ? "input" : "output";
      TORCH_CHECK_VALUE(plan->by_name.empty(), "parallelize_module: '", name, ".", side, "' names '",
                        plan->by_name.begin()->first,
                        "', but arguments of C++ modules have no names\n  fix   give a list, in order");
      TORCH_CHECK_NOT_IMPLEMENTED(plan->by_position.size() <= 1, "parallelize_module: '", name, ".", side, "' lists ",
                                  plan->by_position.size(),
                                  " tensors; moonhalo::call takes modules of one argument and one result");
    }
  }

  std::function<void()> add_call_hooks(CallHooks hooks) override { return add(&ModuleCalls::hooks, std::move(hooks)); }
  std::function<void()> wrap_forward(ForwardWrapper wrapper) override {
    return add(&ModuleCalls::wrappers, std::move(wrapper));
  }

  std::shared_ptr<const Parallelized> parallelized() const override {
    const ModuleCallsPtr calls = find_calls(*module_);
    return calls ? calls->parallelized : nullptr;
  }
  void set_parallelized(std::shared_ptr<const Parallelized> done) override {
    calls_of(*module_)->parallelized = std::move(done);
  }

 private:
  template <class T>
  std::function<void()> add(std::map<int64_t, T> ModuleCalls::*list, T value) {
    const ModuleCallsPtr calls = calls_of(*module_);
    const int64_t number = calls->added++;
    (calls.get()->*list).emplace(number, std::move(value));
    return [calls = std::weak_ptr(calls), list, number] {
      if (const ModuleCallsPtr alive = calls.lock()) (alive.get()->*list).erase(number);
    };
  }

  std::shared_ptr<nn::Module> module_;
};

}  // namespace

ModuleTreePtr module_tree(nn::Module& module) { return std::make_shared<TorchModuleTree>(module.shared_from_this()); }

namespace detail {

void declare_members(Members members) {
  const std::lock_guard lock(declared_mutex);
  declared().push_back(std::move(members));
}

at::Tensor& registered_tensor(nn::Module& module, const std::string& name, bool is_parameter) {
  return is_parameter ? Parameters::of(module)[name] : buffers_of(module)[name];
}

at::Tensor call_module(nn::Module& module, const at::Tensor& input,
                       const std::function<at::Tensor(const at::Tensor&)>& forward) {
  const auto run = [&](const at::Tensor& inside) {
    const std::optional<at::Tensor> output = call_children(module, inside);
    return output ? *output : forward(inside);
  };
  const ModuleCallsPtr calls = find_calls(module);
  if (calls == nullptr) return run(input);
  const std::map<int64_t, CallHooks> hooks = calls->hooks;  // hooks may remove themselves
  CallTensors values{{input}};
  for (const auto& [number, hook] : hooks) {
    if (hook.before) hook.before(values);
  }
  Forward inner = [&run](const CallTensors& arguments) { return CallTensors{{run(arguments.by_position.at(0))}}; };
  for (const auto& [number, wrapper] : std::map(calls->wrappers)) {
    inner = [wrapper, inner](const CallTensors& arguments) { return wrapper(inner, arguments); };
  }
  values = inner(values);
  for (const auto& [number, hook] : hooks) {
    if (hook.after) hook.after(values);
  }
  return values.by_position.at(0);
}

}  // namespace detail
}  // namespace moonhalo
