// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace moonhalo {

/// Called with every bucket before and after its sum; flat, this rank's addends and results. They may change its
/// values, alike on all ranks. Gradients travel together if their hooks are the same object.
struct SumHooks {
  std::function<void(at::Tensor&)> before = {}, after = {};
};

struct GradientSyncOptions {
  int64_t bucket_bytes = int64_t{32} << 20;
  /// Gradients of fewer bits (float16, bfloat16) are summed in this type.
  std::optional<at::ScalarType> reduce_dtype = {};
  std::shared_ptr<const SumHooks> hooks = {};
};

/// Reduces every gradient of `parameters` that is still a Partial, several in one message: where its leaf is replicated
/// by an all-reduce, where its leaf is cut by a reduce-scatter that leaves the leaf's own block. Collective over their
/// meshes; every rank gives the same parameters in the same order. Tensors without gradient and plain ones pass.
/// Optimizers do the same one by one when they meet a Partial, so this changes no result. A reduce_dtype or hooks that
/// are not given are those of the unit that a parameter belongs to (unit_reducer.h). ValueError for a parameter that
/// note_replaced was told of.
void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options = {});

/// Does what finish_grad_sync does in two halves: what is posted at once, a message for every pair of ranks, travels
/// while the ranks compute. Until `finish` the parameters have no gradient; one that came meanwhile is added then.
/// Summed in the order of the ranks, so the bits are those of finish_grad_sync.
class PendingGradientSync {
 public:
  /// `copies`: also gradients of leaves that the ranks hold copies of. What more than one mesh dim has to sum waits for
  /// finish_grad_sync. Collective, as finish_grad_sync.
  PendingGradientSync(const std::vector<at::Tensor>& parameters, bool copies, const GradientSyncOptions& options);
  ~PendingGradientSync();
  /// Collective. Once.
  void finish();

 private:
  friend void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options);
  struct Bucket;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<std::pair<at::Tensor, at::Tensor>> taken_;  // parameters and their gradients
};

/// Remembers that another tensor stands in this one's place: an optimizer that still has it would train nothing.
void note_replaced(const at::Tensor& parameter);

/// True if finish_grad_sync would have something to do.
bool awaits_gradient_sync(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
