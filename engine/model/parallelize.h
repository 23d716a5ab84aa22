// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/deferred/factory_capture.h"
#include "moonhalo/engine/model/distribute_parameters.h"
#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace torch::nn {
class Module;
class AnyModule;
}  // namespace torch::nn

namespace moonhalo {

struct ParallelizeOptions {
  std::optional<int64_t> src_data_rank = 0;  ///< as in distribute_parameters
  Unmatched unmatched = Unmatched::kError;
  bool is_model_sharded = false;  ///< as in distribute_parameters
  /// Placements for tensors that `zeros`, `rand` and other factories (factory_capture.h) make within the root's
  /// forward. Without it they are plain. Takes effect in `moonhalo::call` of the root.
  std::optional<FactoryPlan> factory = {};
};

/// Distributes a torch::nn model over a mesh, in place, and returns the same pointer. Collective over the mesh. Make
/// optimizers afterwards. Every parameter and buffer becomes a ShardTensor, sharded as the plan says or replicated; its
/// gradient, if it has one, is distributed with it. A second call warns and changes nothing.
///
/// The member variables of LibTorch's layers (`weight`, `bias`, running statistics, projections of attention) are
/// replaced together with the registered tensors. Tensors of a user-defined class stay plain, which means replicated,
/// unless the class was declared with `declare_members`; a plan that shards a tensor of an undeclared class is an
/// error.
///
/// LibTorch's modules have no hooks. So a plan's entries for inputs and outputs take effect only if the module is
/// called with `moonhalo::call` below (children of a Sequential included).
std::shared_ptr<torch::nn::Module> parallelize_module(const std::shared_ptr<torch::nn::Module>& module,
                                                      const MeshPtr& mesh, const ParallelPlan& plan,
                                                      const ParallelizeOptions& options = {});

namespace detail {
using Members = std::function<std::vector<at::Tensor*>(torch::nn::Module&)>;
void declare_members(Members members);
at::Tensor enter(const torch::nn::Module& module, const at::Tensor& input);
at::Tensor leave(const torch::nn::Module& module, const at::Tensor& output);
/// Replaces each parameter and buffer of `root` and its descendants, and the member variables that hold it, by the
/// result of `place(name, tensor, is_parameter)`. A tensor that several modules share is replaced once. Throws
/// NotImplementedError, before anything changes, for a class that holds tensors in undeclared members
/// (declare_members).
void replace_tensors(torch::nn::Module& root,
                     const std::function<at::Tensor(const std::string&, const at::Tensor&, bool)>& place);
/// Returns null unless the module is a root that was parallelized with `factory`.
std::unique_ptr<CaptureFactories> capture_factories_of(const torch::nn::Module& module);
/// Calls a Sequential child by child. Returns nullopt for any other module.
std::optional<at::Tensor> call_children(torch::nn::Module& module, const at::Tensor& input);
}  // namespace detail

/// Declares the tensor members of a module class. Call it once per program, before parallelize_module:
///     declare_members<MyLayerImpl>([](MyLayerImpl& layer) { return std::vector<at::Tensor*>{&layer.scale}; });
template <class Module, class Function>
void declare_members(Function members) {
  detail::declare_members([members](torch::nn::Module& module) -> std::vector<at::Tensor*> {
    auto* typed = dynamic_cast<Module*>(&module);
    if (typed == nullptr) return {};
    return members(*typed);
  });
}

/// Calls `module->forward(input)` and redistributes the first argument and the first result as the plan says. `module`
/// is a holder (torch::nn::Linear) or a shared pointer. Without a plan, calls forward only. Collective if the plan
/// moves data.
template <class Module>
at::Tensor call(Module& module, const at::Tensor& input) {
  const at::Tensor inside = detail::enter(*module, input);
  auto captured = detail::capture_factories_of(*module);
  std::optional<at::Tensor> output = detail::call_children(*module, inside);
  if (!output) output = module->forward(inside);
  captured.reset();
  return detail::leave(*module, *output);
}

}  // namespace moonhalo
