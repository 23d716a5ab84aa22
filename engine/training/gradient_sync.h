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

/// Functions that are called with every bucket before and after its reduction. The bucket is a flat tensor: this rank's
/// addends, or the results. They may change its values, equally on all ranks. Gradients share a bucket only if their
/// hooks are the same object.
struct SumHooks {
  std::function<void(at::Tensor&)> before = {}, after = {};
};

/// Settings of the reduction of gradients over the ranks.
struct GradientSyncOptions {
  /// The size at which a bucket is sent.
  int64_t bucket_bytes = int64_t{32} << 20;
  /// Gradients of narrower dtypes (float16, bfloat16) are reduced in this dtype.
  std::optional<at::ScalarType> reduce_dtype = {};
  std::shared_ptr<const SumHooks> hooks = {};
};

/// Reduces every Partial gradient of `parameters`, in buckets: by all-reduce if the leaf is replicated, by
/// reduce-scatter to the leaf's own block if it is sharded. Parameters without gradient and plain ones are skipped.
/// Optimizers reduce Partials one by one, so calling this changes no result. If reduce_dtype or hooks are not given,
/// those of the parameter's unit apply (unit_reducer.h). Collective over the parameters' meshes; every rank passes the
/// same parameters in the same order. Throws ValueError for a parameter passed to note_replaced.
void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options = {});

/// Does the same as finish_grad_sync in two steps. The constructor posts one message per pair of ranks, which are in
/// flight while the ranks compute. Until `finish` the parameters have no gradient; a gradient that arrives meanwhile is
/// added then. The reduction is in rank order, so the bits are those of finish_grad_sync.
class PendingGradientSync {
 public:
  /// `copies`: include gradients of replicated leaves. Gradients that several mesh dims must reduce are left to
  /// finish_grad_sync. Collective as finish_grad_sync.
  PendingGradientSync(const std::vector<at::Tensor>& parameters, bool copies, const GradientSyncOptions& options);
  ~PendingGradientSync();
  /// Waits and sets the gradients. Call it once. Collective.
  void finish();

 private:
  friend void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options);
  struct Bucket;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<std::pair<at::Tensor, at::Tensor>> taken_;  // parameters and their gradients
};

/// Records that another tensor has replaced this parameter, of any shape, so that an optimizer that still holds it gets
/// an error. Not collective.
void note_replaced(const at::Tensor& parameter);

/// True if finish_grad_sync would reduce the gradient of any of these tensors. Not collective.
bool awaits_gradient_sync(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
