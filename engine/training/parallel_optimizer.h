// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "moonhalo/engine/model/module_tree.h"
#include "moonhalo/engine/model/torch_module_tree.h"
#include "moonhalo/engine/training/gradient_sync.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn
namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace moonhalo {

/// One of LibTorch's optimizers for a model of which all or parts are divided (fully_shard, replicate,
/// parallelize_module). It sums gradients over the ranks before each step, in buckets; LibTorch's own `step` would do
/// it one by one and would square complex gradients. What is plain trains as on one rank, too.
///
///     auto optimizer = mh::build_optimizer<torch::optim::AdamW>(*net, torch::optim::AdamWOptions(1e-3));
///     optimizer.zero_grad();
///     loss.backward();
///     optimizer.clip_gnorm(1.0);
///     optimizer.step();
///     io::save_checkpoint(world, "run/1", {{"model", net.get()}, {"optimizer", &optimizer.optimizer()}});
///
/// Every function but zero_grad, scale_grads and the hooks is collective over the meshes of the parameters.
class ParallelOptimizer {
 public:
  /// A function that gets a bucket of gradients: a flat tensor, to be changed in place.
  using Hook = std::function<void(at::Tensor& bucket)>;

  explicit ParallelOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer);
  ~ParallelOptimizer();
  ParallelOptimizer(ParallelOptimizer&&) noexcept;
  ParallelOptimizer& operator=(ParallelOptimizer&&) noexcept;

  /// The optimizer of LibTorch, for checkpoints and schedules.
  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  /// The parameters of all groups, in order.
  std::vector<at::Tensor> parameters() const;

  /// Sets the gradients to zero, or removes them.
  void zero_grad(bool set_to_none = true) const;
  /// Sums the gradients over the ranks now, several in one message, each to its parameter's own placements. A second
  /// call does nothing. `bucket_bytes` defaults to that of the parameters' unit.
  void sync_shard_grad(std::optional<int64_t> bucket_bytes = {}, std::optional<at::ScalarType> reduce_dtype = {}) const;
  /// As moonhalo::scale_grads.
  void scale_grads(double factor) const;
  /// Returns the joint norm of the gradients, after their sums; then scales them to `max_norm` at most, if it is given.
  at::Tensor clip_gnorm(std::optional<double> max_norm = {}, double norm_type = 2) const;

  /// The hook is called with each bucket of gradients before (after) it is summed over the ranks, also by sums during
  /// backward. It may change the values in place, equally on all ranks.
  void register_reducer_pre_hook(Hook hook);
  void register_reducer_post_hook(Hook hook);

  /// Sums the gradients, then does optimizer_step. With `closure`, for optimizers that evaluate the loss several times
  /// (LBFGS), sums after each evaluation and returns its loss.
  at::Tensor step(const std::function<at::Tensor()>& closure = nullptr) const;
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

 private:
  struct Hooks {
    std::vector<Hook> before, after;
    bool empty() const { return before.empty() && after.empty(); }
  };
  std::shared_ptr<SumHooks> sum_hooks() const;
  void pass_hooks_to_reducers() const;

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
};

/// Makes an optimizer of the class `Optimizer` for all parameters of a module. Not collective.
template <class Optimizer, class Options>
ParallelOptimizer build_optimizer(const ModuleTreePtr& module, Options options) {
  return ParallelOptimizer(std::make_unique<Optimizer>(parameters_of(module), std::move(options)));
}
template <class Optimizer, class Options>
ParallelOptimizer build_optimizer(torch::nn::Module& module, Options options) {
  return build_optimizer<Optimizer>(module_tree(module), std::move(options));
}

}  // namespace moonhalo
