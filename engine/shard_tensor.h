// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <typeinfo>
#include <vector>

#include "engine/mesh.h"
#include "engine/spec.h"

namespace moonhalo {

/// A ShardTensor is an at::Tensor: sizes, dtype and device are the global tensor's; its data is this rank's block.
/// Any LibTorch code runs on it, forward and backward; see engine/README.md for how.
bool is_shard_tensor(const at::Tensor& tensor);
/// Spec of a ShardTensor. TypeError for a plain tensor.
const SpecPtr& spec(const at::Tensor& tensor);

/// Makes a ShardTensor from each rank's block. Collective over the mesh: block sizes are exchanged once, and must form
/// a grid (TORCH_CHECK_VALUE on every rank otherwise). Shard sizes in `placements` are not needed. Differentiable.
at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, const std::vector<Placement>& placements);
/// As above for a known spec: no communication; the local shape must be the spec's.
at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec);

/// Cuts `full`, which only mesh rank `src` needs to hold (others may pass an undefined tensor), over the mesh.
/// Collective; only blocks travel. Not differentiable with respect to `full` unless every rank holds it; see
/// scatter_tensor.
at::Tensor distribute_tensor(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements,
                             int64_t src = 0);
/// As distribute_tensor; gradients flow back to `source` on rank `src`.
at::Tensor scatter_tensor(const at::Tensor& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          int64_t src = 0);

/// The same global tensor under other placements. Collective unless nothing moves. Differentiable: the gradient comes
/// back in the placements of `tensor` (Partial counts as Replicate).
at::Tensor redistribute(const at::Tensor& tensor, const std::vector<Placement>& placements);
at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& to);
/// The same on another mesh of the same ranks, in any arrangement ({4} to {2, 2}). Collective over both; ValueError
/// when a mesh holds other ranks than the tensor's.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements);

/// A redistribute whose messages travel while the program goes on. Sums (Partial) are made before it starts.
class PendingTensor {
 public:
  /// The redistributed tensor, the same as redistribute gives, gradients included. Every rank that started it must
  /// wait, but none waits for another's wait. Again: the same tensor. ValueError when the tensor was written since.
  at::Tensor wait();

 private:
  friend PendingTensor redistribute_async(const at::Tensor& tensor, const SpecPtr& to);
  struct State;
  std::shared_ptr<State> state_;
};
/// Starts a redistribute. Collective unless nothing moves; other collective calls may follow before wait().
PendingTensor redistribute_async(const at::Tensor& tensor, const std::vector<Placement>& placements);
PendingTensor redistribute_async(const at::Tensor& tensor, const SpecPtr& to);
PendingTensor redistribute_async(const at::Tensor& tensor, const MeshPtr& mesh,
                                 const std::vector<Placement>& placements);
/// The global tensor, plain, on every rank. Collective. Differentiable.
at::Tensor full_tensor(const at::Tensor& tensor);
/// This rank's block, plain and without a copy (of a Partial its addend, until an operator sums the tensor up).
/// Differentiable: the gradient of each rank is that of its block; of a replicated dim it must be the same on all
/// ranks.
at::Tensor to_local(const at::Tensor& tensor);

/// Block sizes per mesh dim: {mesh_dim -> sizes along the dim that it cuts}. No communication.
std::map<int64_t, std::vector<int64_t>> sharding_sizes(const at::Tensor& tensor);

/// What happens to operators that no rule covers: gathered to Replicate with one warning per operator, or refused.
enum class Fallback : uint8_t { kReplicate, kError };
/// Per thread (ranks may be threads); returns the previous setting.
Fallback set_fallback(Fallback fallback);

// ---- Implementation, for the engine
// ----------------------------------------------------------------------------------

/// The dispatch key below autograd on which every call with a ShardTensor arrives. One place to change it.
inline constexpr c10::DispatchKey kShardKey = c10::DispatchKey::CustomRNGKeyId;

struct ShardTensorImpl final : public c10::TensorImpl {
  ShardTensorImpl(at::Tensor local, SpecPtr spec);

  const at::Tensor& local() const { return local_; }
  const SpecPtr& spec() const { return spec_; }
  /// Replaces block and spec by others of the same global value (a Partial that was resolved).
  void replace(at::Tensor local, SpecPtr spec);

  /// A view is an inference tensor exactly when what it was made from is one, whatever mode is on now.
  void take_mode_of(const ShardTensorImpl& base);
  /// Whether another ShardTensor has this block too (detach, set_data): then a Partial must not be summed up in place.
  /// Plain tensors that alias the block do not count, since one rank alone may hold them.
  bool shares_block() const { return sharers_.use_count() > 1; }
  void share_block(const ShardTensorImpl& other) const;
  /// The gradient hook of a leaf is in place (engine/boundary.h).
  bool guarded = false;
  /// Which calls made the value, as a tag (engine/call_tag.h): equal on all ranks that made the same calls. Goes with
  /// every collective that works on the tensor, so that two tensors of one shape are not mixed up.
  uint64_t origin = 0;

  const char* tensorimpl_type_name() const override { return "ShardTensorImpl"; }
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version,
                                                              bool allow_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version,
                                                              bool allow_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& other) override;
  const at::Storage& storage() const override;  ///< throws TypeError

 private:
  void set_geometry();
  at::Tensor local_;
  SpecPtr spec_;
  mutable std::shared_ptr<const bool> sharers_;  // held by all that were made with this block
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

}  // namespace moonhalo
