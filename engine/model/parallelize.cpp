// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/model/parallelize.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <mutex>
#include <unordered_map>

#include "moonhalo/engine/deferred/deferred.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

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

// Plans of modules that were parallelized

struct Activations {
  std::weak_ptr<const nn::Module> module;
  std::string name;
  MeshPtr mesh;
  SignaturePlan inputs, outputs;
  bool root = false;
  std::optional<FactoryPlan> factory = {};
};

// Ranks may be threads of one process; each has its own modules.
std::mutex activations_mutex;
std::unordered_map<const nn::Module*, std::shared_ptr<const Activations>>& activations() {
  static std::unordered_map<const nn::Module*, std::shared_ptr<const Activations>> all;
  return all;
}

std::shared_ptr<const Activations> find_activations(const nn::Module& module) {
  const std::lock_guard lock(activations_mutex);
  const auto found = activations().find(&module);
  if (found == activations().end()) return nullptr;
  if (!found->second->module.expired()) return found->second;
  activations().erase(found);  // another module had this address
  return nullptr;
}

void remember(std::shared_ptr<const Activations> made) {
  const std::lock_guard lock(activations_mutex);
  std::erase_if(activations(), [](const auto& entry) { return entry.second->module.expired(); });
  if (const auto module = made->module.lock()) activations()[module.get()] = std::move(made);
}

// Only a plan that speaks of one unnamed tensor can be carried out by `call`.
void check_side(const SignaturePlan& plan, const std::string& name, const char* side) {
  TORCH_CHECK_VALUE(plan.by_name.empty(), "parallelize_module: '", name, ".", side, "' names '",
                    plan.by_name.begin()->first, "', but arguments of C++ modules have no names\n  fix   give a list, in order");
  TORCH_CHECK_NOT_IMPLEMENTED(plan.by_position.size() <= 1, "parallelize_module: '", name, ".", side, "' lists ",
                              plan.by_position.size(), " tensors; moonhalo::call takes modules of one argument and one result");
}

at::Tensor move(const nn::Module& module, const at::Tensor& value, bool input) {
  const auto found = find_activations(module);
  if (!found) return value;
  const SignaturePlan& plan = input ? found->inputs : found->outputs;
  if (plan.by_position.empty() || !plan.by_position[0]) return value;
  return redistribute_argument(value, found->mesh, *plan.by_position[0],
                               "'" + found->name + (found->name.empty() ? "" : ".") + (input ? "input'" : "output'"));
}

// Placing

class Parallelizer {
 public:
  Parallelizer(const std::shared_ptr<nn::Module>& root, MeshPtr mesh, const ParallelizeOptions& options)
      : mesh_(std::move(mesh)), options_(options) {
    for (const auto& item : root->named_modules("", /*include_self=*/true)) {
      ModuleFacts facts{item.key(), {class_name(*item.value())}, {}};
      for (const auto& tensor : tensors_of(*item.value())) {
        if (tensor.second->defined()) facts.tensors.push_back({tensor.first, tensor.second->sizes().vec()});
      }
      modules_.push_back(item.value());
      facts_.push_back(std::move(facts));
    }
  }

  void run(const ParallelPlan& plan) {
    for (const auto& [name, style] : plan.styles) {
      TORCH_CHECK_NOT_IMPLEMENTED(style.kind != ParallelStyle::Kind::kCustom, "parallelize_module: '", name,
                                  "' has a style written in Lua, which C++ modules do not take");
    }
    TORCH_CHECK_NOT_IMPLEMENTED(!options_.is_model_sharded || plan.styles.empty(), "parallelize_module: is_model_sharded needs a ",
                                "plan of placements, since styles read the shapes of whole parameters",
                                "\n  fix   give {\"parameter\": {...}, \"forward\": {...}}");
    if (options_.factory) check_factories(*options_.factory, *mesh_);
    plans_ = resolve(plan, facts_, *mesh_, options_.unmatched);
    // Everything is checked before anything changes.
    for (size_t i = 0; i < modules_.size(); ++i) check(i);
    distribute();
    for (size_t i = 0; i < modules_.size(); ++i) {
      remember(std::make_shared<Activations>(Activations{modules_[i], facts_[i].name, mesh_, plans_[i].inputs,
                                                         plans_[i].outputs, i == 0,
                                                         i == 0 ? options_.factory : std::nullopt}));
    }
  }

 private:
  static std::vector<std::pair<std::string, at::Tensor*>> tensors_of(nn::Module& module) {
    std::vector<std::pair<std::string, at::Tensor*>> all;
    for (auto& item : Parameters::of(module)) all.emplace_back(item.key(), &item.value());
    for (auto& item : buffers_of(module)) all.emplace_back(item.key(), &item.value());
    return all;
  }

  std::string full_name(size_t i, const std::string& tensor) const {
    return facts_[i].name.empty() ? tensor : facts_[i].name + "." + tensor;
  }

  void check(size_t i) const {
    check_side(plans_[i].inputs, facts_[i].name, "input");
    check_side(plans_[i].outputs, facts_[i].name, "output");
    std::vector<at::Tensor*> members;
    const bool known = find_members(*modules_[i], members);
    for (const auto& [name, tensor] : plans_[i].tensors) {
      const bool cut = std::any_of(tensor.placements.begin(), tensor.placements.end(),
                                   [](const Placement& placement) { return placement.is_shard(); });
      TORCH_CHECK_NOT_IMPLEMENTED(known || !cut, "parallelize_module: '", full_name(i, name), "' cannot be cut, it is not known ",
                                  "where ", class_name(*modules_[i]), " keeps it\n  have  a module class that is not LibTorch's own",
                                  "\n  fix   moonhalo::declare_members<", class_name(*modules_[i]),
                                  "Impl>([](auto& m) { return std::vector<at::Tensor*>{&m.", name, "}; }) before this call");
    }
  }

  void distribute() {
    std::vector<PlannedTensor> planned;
    std::vector<std::pair<size_t, at::Tensor*>> slots;  // where the planned tensors are registered, and in which module
    std::vector<at::Tensor*> plain;                     // of modules whose tensors stay plain
    for (size_t i = 0; i < modules_.size(); ++i) {
      std::vector<at::Tensor*> members;
      const bool known = find_members(*modules_[i], members);
      for (const auto& [name, slot] : tensors_of(*modules_[i])) {
        if (!known) {
          plain.push_back(slot);
        } else if (slot->defined()) {
          planned.push_back({full_name(i, name), *slot, plans_[i].tensors.at(name)});
          slots.emplace_back(i, slot);
        }
      }
    }
    const std::vector<at::Tensor> placed =
        distribute_parameters(planned, mesh_, options_.src_data_rank, options_.is_model_sharded);
    for (size_t s = 0; s < slots.size(); ++s) {
      if (!placed[s].defined()) continue;
      std::vector<at::Tensor*> members;
      find_members(*modules_[slots[s].first], members);
      for (at::Tensor* member : members) {
        if (member->is_same(planned[s].tensor)) *member = placed[s];
      }
      *slots[s].second = placed[s];
    }
    for (at::Tensor* slot : plain) materialize_in_place(*slot);
  }

  MeshPtr mesh_;
  const ParallelizeOptions& options_;
  std::vector<std::shared_ptr<nn::Module>> modules_;
  std::vector<ModuleFacts> facts_;
  std::vector<ModulePlan> plans_;
};

}  // namespace

std::shared_ptr<nn::Module> parallelize_module(const std::shared_ptr<nn::Module>& module, const MeshPtr& mesh,
                                               const ParallelPlan& plan, const ParallelizeOptions& options) {
  TORCH_CHECK_VALUE(module != nullptr && mesh != nullptr, "parallelize_module: no ", module ? "mesh" : "module", " given");
  if (const auto before = find_activations(*module); before && before->root) {
    if (mesh->rank() == 0) {
      TORCH_WARN("parallelize_module: this ", class_name(*module), " was parallelized before, nothing is changed");
    }
    return module;
  }
  Parallelizer(module, mesh, options).run(plan);
  return module;
}

namespace detail {

void declare_members(Members members) {
  const std::lock_guard lock(declared_mutex);
  declared().push_back(std::move(members));
}

void replace_tensors(nn::Module& root,
                     const std::function<at::Tensor(const std::string&, const at::Tensor&, bool)>& place) {
  const auto modules = root.named_modules("", /*include_self=*/true);
  std::vector<at::Tensor*> members;
  for (const auto& item : modules) {
    const bool empty = Parameters::of(*item.value()).is_empty() && buffers_of(*item.value()).is_empty();
    TORCH_CHECK_NOT_IMPLEMENTED(find_members(*item.value(), members) || empty, "'", item.key(),
                                "': it is not known where ", class_name(*item.value()),
                                " keeps its tensors\n  fix   tell it with moonhalo::declare_members<",
                                class_name(*item.value()), "Impl> before this call");
  }
  std::unordered_map<const void*, std::pair<at::Tensor, at::Tensor>> placed;  // before, alive; after
  for (const auto& item : modules) {
    for (auto* registry : {&Parameters::of(*item.value()), &buffers_of(*item.value())}) {
      const bool is_parameter = registry == &Parameters::of(*item.value());
      for (auto& slot : *registry) {
        if (!slot.value().defined()) continue;
        const at::Tensor old = slot.value();
        auto& [before, after] = placed[old.unsafeGetTensorImpl()];
        if (!after.defined()) {
          before = old;
          after = place(item.key().empty() ? slot.key() : item.key() + "." + slot.key(), old, is_parameter);
        }
        slot.value() = after;
      }
    }
  }
  for (at::Tensor* member : members) {
    if (!member->defined()) continue;
    const auto found = placed.find(member->unsafeGetTensorImpl());
    if (found != placed.end()) *member = found->second.second;
  }
}

at::Tensor enter(const nn::Module& module, const at::Tensor& input) { return move(module, input, true); }
at::Tensor leave(const nn::Module& module, const at::Tensor& output) { return move(module, output, false); }

std::unique_ptr<CaptureFactories> capture_factories_of(const nn::Module& module) {
  const auto found = find_activations(module);
  return found && found->factory ? std::make_unique<CaptureFactories>(found->mesh, *found->factory) : nullptr;
}

std::optional<at::Tensor> call_children(nn::Module& module, const at::Tensor& input) {
  auto* sequential = dynamic_cast<nn::SequentialImpl*>(&module);
  if (sequential == nullptr) return std::nullopt;
  at::Tensor value = input;
  for (nn::AnyModule& child : *sequential) {
    const std::shared_ptr<nn::Module> pointer = child.ptr();
    value = enter(*pointer, value);
    const std::optional<at::Tensor> inside = call_children(*pointer, value);
    value = leave(*pointer, inside ? *inside : child.forward(value));
  }
  return value;
}

}  // namespace detail
}  // namespace moonhalo
