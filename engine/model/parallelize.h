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
  /// Tensors that `zeros`, `rand` and the like (factory_capture.h) make within the root's forward become ShardTensors
  /// with these placements. Without it they stay plain. Takes effect in `moonhalo::call` of the root.
  std::optional<FactoryPlan> factory = {};
};

/// Divides a torch::nn model over a mesh, in place, and returns the same pointer. Collective over the mesh; make
/// optimizers afterwards. Every parameter and buffer becomes a ShardTensor, cut as the plan says or replicated, with
/// its gradient if it has one. A second call warns and changes nothing.
///
/// The member variables of LibTorch's layers (`weight`, `bias`, running statistics, attention's projections) are
/// replaced along with the registered tensors. A class of yours keeps its tensors plain, which act as replicated ones,
/// unless it was declared with `declare_members`; cutting a tensor of an undeclared class is an error that says so.
///
/// LibTorch's modules have no hooks, so what a plan says of inputs and outputs takes effect where a module is called
/// with `moonhalo::call` below (children of a Sequential included), and nowhere else.
std::shared_ptr<torch::nn::Module> parallelize_module(const std::shared_ptr<torch::nn::Module>& module,
                                                      const MeshPtr& mesh, const ParallelPlan& plan,
                                                      const ParallelizeOptions& options = {});

namespace detail {
using Members = std::function<std::vector<at::Tensor*>(torch::nn::Module&)>;
void declare_members(Members members);
at::Tensor enter(const torch::nn::Module& module, const at::Tensor& input);
at::Tensor leave(const torch::nn::Module& module, const at::Tensor& output);
/// Puts what `place(name, tensor, is_parameter)` gives into the place of every parameter and buffer of `root` and
/// below, and of the member variables that hold it; a tensor that several modules share is placed once.
/// NotImplementedError, before anything changes, for a class that keeps tensors in undeclared members
/// (declare_members).
void replace_tensors(torch::nn::Module& root,
                     const std::function<at::Tensor(const std::string&, const at::Tensor&, bool)>& place);
/// Null unless the module is a root that was parallelized with `factory`.
std::unique_ptr<CaptureFactories> capture_factories_of(const torch::nn::Module& module);
/// Calls a Sequential child by child; nothing for any other module.
std::optional<at::Tensor> call_children(torch::nn::Module& module, const at::Tensor& input);
}  // namespace detail

/// Tells where a module class keeps its tensors, once per program, before parallelize_module:
///     declare_members<MyLayerImpl>([](MyLayerImpl& layer) { return std::vector<at::Tensor*>{&layer.scale}; });
template <class Module, class Function>
void declare_members(Function members) {
  detail::declare_members([members](torch::nn::Module& module) -> std::vector<at::Tensor*> {
    auto* typed = dynamic_cast<Module*>(&module);
    if (typed == nullptr) return {};
    return members(*typed);
  });
}

/// `module->forward(input)` between the plan's moves for the module's first argument and first result. `module` is a
/// holder (torch::nn::Linear) or a shared pointer. Without a plan: forward alone.
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
