// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "moonhalo/engine/training/gradient_sync.h"

namespace moonhalo {

/// Reduces the gradients of several leaves over the ranks during backward. Each gradient is taken as soon as it is
/// complete, many are sent in one message, and the reduced gradients are set when backward ends; until then these
/// leaves have no gradient. Gradients of earlier passes are kept and added to. The program's hooks for the time after
/// that (register_post_accumulate_grad_hook) are called at the end of backward. Gradients of leaves in blocks are
/// reduced then; those of copies are sums that operators reduce (Partial). If a pass throws, gradients are unchanged,
/// and the leaves that it had completed get no gradient from it; if such a hook throws, gradients are set, and later
/// hooks are not called. Owned by its leaves.
class UnitReducer : public std::enable_shared_from_this<UnitReducer> {
 public:
  /// `sums`: if true, every backward reduces these gradients along the mesh dims that store the leaves, unless
  /// set_requires_gradient_sync sets otherwise. Not collective.
  static std::shared_ptr<UnitReducer> of(const std::vector<at::Tensor>& leaves, bool sums,
                                         const GradientSyncOptions& options);
  /// Returns the reducer of a leaf, or null. Not collective.
  static std::shared_ptr<UnitReducer> of(const at::Tensor& leaf);

  /// The settings that `of` got, with the hooks of set_hooks.
  const GradientSyncOptions& options() const { return options_; }
  /// Sends the complete gradients. Collective.
  void flush();
  /// Sets the functions that are called with every bucket of these leaves. Not collective.
  void set_hooks(std::shared_ptr<const SumHooks> hooks) { options_.hooks = std::move(hooks); }

 private:
  friend struct LeafHook;
  friend struct ReducersOfRank;
  friend void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync);
  using WeakLeaf = c10::weak_intrusive_ptr<c10::TensorImpl>;

  UnitReducer(bool sums, GradientSyncOptions options) : sums_(sums), options_(std::move(options)) {}
  void watch(const at::Tensor& leaf);
  void begins(const at::Tensor& leaf);
  // Returns false if the gradient is not reduced in this pass, so that it is complete already.
  bool complete(const at::Tensor& leaf);
  void forget();
  bool sums_now() const { return asked_.value_or(sums_); }

  bool sums_;
  std::optional<bool> asked_;
  GradientSyncOptions options_;
  std::vector<at::Tensor> ready_;
  int64_t ready_bytes_ = 0;
};

/// Returns the bucket size in bytes of the first reducer that has one of these leaves, or the default. Not
/// collective.
int64_t bucket_bytes_of(const std::vector<at::Tensor>& leaves);

/// Sets whether every backward reduces the gradients of these leaves over the ranks, also along mesh dims that
/// replicate them. If `sync` is false, gradients accumulate over several passes without messages, unsharded on every
/// rank, until finish_grad_sync. The default for leaves of fully_shard is to reduce along the mesh dims that store
/// them, unless they stay unsharded after backward (reshard_after_backward); for leaves of replicate it is not to
/// reduce. Every rank must set the same. Not collective.
void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync);

}  // namespace moonhalo
