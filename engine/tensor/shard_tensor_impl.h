// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/TensorImpl.h>

#include <memory>
#include <typeinfo>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {

/// The engine's form of a ShardTensor.
struct ShardTensorImpl final : public c10::TensorImpl {
  ShardTensorImpl(at::Tensor local, SpecPtr spec);

  const at::Tensor& local() const { return local_; }
  const SpecPtr& spec() const { return spec_; }
  /// Replaces block and spec by others of the same global value (a Partial that was resolved).
  void replace(at::Tensor local, SpecPtr spec);

  /// A view is an inference tensor exactly when what it was made from is one, whatever mode is on now.
  void take_mode_of(const ShardTensorImpl& base);
  /// True if another ShardTensor has this block too (detach, set_data): then a Partial must not be summed up in place.
  /// Plain tensors that alias the block do not count, since one rank alone may hold them. The same on all ranks.
  bool shares_block() const { return sharers_ && (sharers_->collected || sharers_.use_count() > 1); }
  void share_block(const ShardTensorImpl& other) const;
  /// Tensors of a script live until its garbage is collected, on each rank at another time: tensors that one of them
  /// has shared a block with count as sharing it from then on.
  void live_until_collected();
  /// The gradient hook of a leaf is in place (engine/tensor/gradient_hooks.h).
  bool guarded = false;
  /// The calls that made the value, as a tag (engine/comm/diagnostics/call_fingerprint.h): equal on all ranks that made
  /// the same calls. Goes with every collective that works on the tensor, so that two tensors of one shape are not
  /// mixed up.
  uint64_t origin = 0;

  const char* tensorimpl_type_name() const override { return "ShardTensorImpl"; }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;
  const at::Storage& storage() const override;  ///< throws TypeError
  /// Frees the block once no tensor is left; a weak pointer alone keeps none (tensor_meaning.cpp has some for long).
  void release_resources() override;

 private:
  void set_geometry();
  at::Tensor local_;
  SpecPtr spec_;
  struct Sharers {
    bool collected = false;  // some of them as garbage
  };
  mutable std::shared_ptr<Sharers> sharers_;  // held by all that were made with this block
  bool collected_ = false;
};

/// A tensor that has the key but not the type: `plain.set_data(shard)`. Throws TypeError.
[[noreturn]] void refuse_foreign_impl();
/// The impl, or null for a plain or undefined tensor.
inline ShardTensorImpl* shard_impl(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kShardKey)) return nullptr;
  if (typeid(*impl) != typeid(ShardTensorImpl)) refuse_foreign_impl();
  return static_cast<ShardTensorImpl*>(impl);
}
/// Wraps a local block whose shape must be the spec's local shape. No autograd.
at::Tensor wrap(at::Tensor local, const SpecPtr& spec);
/// The same for a block that is not a view. It is copied unless it is stored row by row, as the tensor says.
at::Tensor wrap_new(at::Tensor local, const SpecPtr& spec);

}  // namespace moonhalo
