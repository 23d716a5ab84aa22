// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace moonhalo {

struct GradientSyncOptions {
  int64_t bucket_bytes = int64_t{32} << 20;
  /// Gradients of fewer bits (float16, bfloat16) are summed in this type.
  std::optional<at::ScalarType> reduce_dtype = {};
  /// Called with every bucket before and after its sum; flat, this rank's addends and results. They may change its
  /// values, alike on all ranks.
  std::function<void(at::Tensor&)> before = {}, after = {};
};

/// Reduces every gradient of `parameters` that is still a Partial, several in one message: where its leaf is replicated
/// by an all-reduce, where its leaf is cut by a reduce-scatter that leaves the leaf's own block. Collective over their
/// meshes; every rank gives the same parameters in the same order. Tensors without gradient and plain ones pass.
/// Optimizers do the same one by one when they meet a Partial, so this changes no result.
void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options = {});

/// Sets whether gradients of these leaves are reduced to their blocks as they come (true, as at first) or stay sums
/// over the mesh dims that store the leaves, as they do anyway over those that replicate them: then the gradients of
/// several backward passes add up without messages, whole on every rank, until finish_grad_sync. (Views resolve sums:
/// gradients that pass through one, as those of biases do, are reduced on their way.) Every rank must say the same.
void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync);

/// True if finish_grad_sync would have something to do.
bool awaits_gradient_sync(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
