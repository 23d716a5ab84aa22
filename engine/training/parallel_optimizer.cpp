// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/parallel_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "moonhalo/engine/model/optimizer_step.h"
#include "moonhalo/engine/profile/recorder.h"
#include "moonhalo/engine/training/clip.h"
#include "moonhalo/engine/training/unit_reducer.h"

namespace moonhalo {
namespace {

void call_all(const std::vector<ParallelOptimizer::Hook>& hooks, at::Tensor& bucket) {
  for (const ParallelOptimizer::Hook& hook : hooks) hook(bucket);
}

}  // namespace

ParallelOptimizer::ParallelOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer)
    : optimizer_(std::move(optimizer)) {
  TORCH_CHECK_VALUE(optimizer_ != nullptr, "ParallelOptimizer: no optimizer given");
}

ParallelOptimizer::~ParallelOptimizer() = default;
ParallelOptimizer::ParallelOptimizer(ParallelOptimizer&&) noexcept = default;
ParallelOptimizer& ParallelOptimizer::operator=(ParallelOptimizer&&) noexcept = default;

void ParallelOptimizer::zero_grad(bool set_to_none) const { optimizer_->zero_grad(set_to_none); }

std::vector<at::Tensor> ParallelOptimizer::parameters() const {
  std::vector<at::Tensor> all;
  for (const torch::optim::OptimizerParamGroup& group : optimizer_->param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

void ParallelOptimizer::sync_shard_grad(std::optional<int64_t> bucket_bytes,
                                        std::optional<at::ScalarType> reduce_dtype) const {
  const std::vector<at::Tensor> all = parameters();
  GradientSyncOptions options{.bucket_bytes = bucket_bytes ? *bucket_bytes : bucket_bytes_of(all),
                              .reduce_dtype = reduce_dtype};
  if (!hooks_->empty()) options.hooks = sum_hooks();
  finish_grad_sync(all, options);
}

void ParallelOptimizer::scale_grads(double factor) const { moonhalo::scale_grads(parameters(), factor); }

at::Tensor ParallelOptimizer::clip_gnorm(std::optional<double> max_norm, double norm_type) const {
  sync_shard_grad();
  return max_norm ? clip_grad_norm(parameters(), *max_norm, norm_type) : grad_norm(parameters(), norm_type);
}

// Reducers keep them, and do nothing when the optimizer is gone.
std::shared_ptr<SumHooks> ParallelOptimizer::sum_hooks() const {
  const auto calls = [weak = std::weak_ptr(hooks_)](std::vector<Hook> Hooks::*list) {
    return [weak, list](at::Tensor& bucket) {
      if (const auto alive = weak.lock()) call_all(alive.get()->*list, bucket);
    };
  };
  return std::make_shared<SumHooks>(SumHooks{calls(&Hooks::before), calls(&Hooks::after)});
}

// Sums during backward have no optimizer. They find its hooks in the units.
void ParallelOptimizer::pass_hooks_to_reducers() const {
  const auto hooks = sum_hooks();
  for (const at::Tensor& parameter : parameters()) {
    if (const auto reducer = UnitReducer::of(parameter)) reducer->set_hooks(hooks);
  }
}

void ParallelOptimizer::register_reducer_pre_hook(Hook hook) {
  hooks_->before.push_back(std::move(hook));
  pass_hooks_to_reducers();
}

void ParallelOptimizer::register_reducer_post_hook(Hook hook) {
  hooks_->after.push_back(std::move(hook));
  pass_hooks_to_reducers();
}

at::Tensor ParallelOptimizer::step(const std::function<at::Tensor()>& closure) const {
  const auto carry_out = [&] {
    const RecordPart part("optimizer", Phase::kOptimizer);
    if (!closure) {
      sync_shard_grad();
      return optimizer_step(*optimizer_);
    }
    return optimizer_step(*optimizer_, [&] {
      const at::AutoGradMode with_gradients(true);
      at::Tensor loss = closure();
      sync_shard_grad();
      return loss;
    });
  };
  at::Tensor loss = carry_out();
  note_optimizer_step(optimizer_.get());
  return loss;
}

void ParallelOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  optimizer_->add_param_group(group);
  if (!hooks_->empty()) pass_hooks_to_reducers();
}

}  // namespace moonhalo
