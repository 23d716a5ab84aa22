// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/training/gradient_sync.h"

namespace moonhalo {

/// Sums the gradients of several leaves over the ranks while backward goes on: each is taken as soon as it is complete,
/// many travel in one message, and the sum is there when backward ends. Meanwhile leaves that wait for theirs have
/// none. What earlier passes summed stays and is added to; a pass that throws leaves it alone, and no gradients of its
/// own in leaves that it had completed. Owned by its leaves.
class UnitReducer : public std::enable_shared_from_this<UnitReducer> {
 public:
  /// `sums`: whether this happens unless set_requires_gradient_sync says otherwise; then of stored leaves alone.
  static std::shared_ptr<UnitReducer> of(const std::vector<at::Tensor>& leaves, bool sums,
                                         const GradientSyncOptions& options);
  /// The one that a leaf belongs to, or null.
  static std::shared_ptr<UnitReducer> of(const at::Tensor& leaf);

  const GradientSyncOptions& options() const { return options_; }
  /// Sends what is complete. Collective.
  void flush();
  /// Called with every bucket of these leaves.
  void set_hooks(std::shared_ptr<const SumHooks> hooks) { options_.hooks = std::move(hooks); }

 private:
  friend struct LeafHook;
  friend struct ReducersOfRank;
  friend void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync);
  using WeakLeaf = c10::weak_intrusive_ptr<c10::TensorImpl>;

  UnitReducer(bool sums, GradientSyncOptions options) : sums_(sums), options_(std::move(options)) {}
  void watch(const at::Tensor& leaf);
  void begins(const at::Tensor& leaf);
  void complete(const at::Tensor& leaf);
  void forget();
  bool sums_now() const { return asked_.value_or(sums_); }

  bool sums_;
  std::optional<bool> asked_;
  GradientSyncOptions options_;
  std::vector<at::Tensor> ready_;
  int64_t ready_bytes_ = 0;
};

/// The bytes of gradients in one message of the first unit that has one of these leaves; the default where none has.
int64_t bucket_bytes_of(const std::vector<at::Tensor>& leaves);

/// Sets whether gradients of these leaves are summed over the ranks in every backward pass, also over the mesh dims
/// that replicate them (true), or add up over several passes without messages, whole on every rank, until
/// finish_grad_sync. Leaves of a unit of fully_shard are at first summed over the mesh dims that store them, unless
/// they stay whole after backward (reshard_after_backward); those of replicate are not. Every rank must say the same.
void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync);

}  // namespace moonhalo
