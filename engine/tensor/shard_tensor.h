// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A ShardTensor is an at::Tensor: sizes, dtype and device are the global tensor's; its data is this rank's block.
/// Any LibTorch code runs on it, forward and backward; see engine/README.md for how.
bool is_shard_tensor(const at::Tensor& tensor);
/// Spec of a ShardTensor. TypeError for a plain tensor.
const SpecPtr& spec(const at::Tensor& tensor);

/// Makes a ShardTensor from each rank's block. Collective over the mesh: block sizes are exchanged once, and must form
/// a grid (TORCH_CHECK_VALUE on every rank otherwise). Shard sizes in `placements` are not needed. Differentiable:
/// plain parameters that blocks were computed from (tensor_meaning.h) get the sum of their gradients over the ranks
/// whose blocks differ; ValueError on every rank where a leaf that nothing is said of is the same on all of these.
at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, const std::vector<Placement>& placements);
/// The same for a known spec: no communication; the local shape must be the spec's. What the block was computed from
/// gets the gradient of this rank's block.
at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec);

/// Cuts `full`, which only mesh rank `src` needs to hold (others may pass an undefined tensor), over the mesh.
/// Collective; only blocks travel. Not differentiable with respect to `full` unless every rank holds it; see
/// scatter_tensor.
at::Tensor distribute_tensor(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements,
                             int64_t src = 0);
/// Like distribute_tensor; gradients flow back to `source` on rank `src`. ValueError where it was computed from plain
/// parameters of modules, which all ranks have.
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

/// Operators that no rule covers are gathered to Replicate with one warning per operator, or refused.
enum class Fallback : uint8_t { kReplicate, kError };
/// Per thread (ranks may be threads); returns the previous setting.
Fallback set_fallback(Fallback fallback);

}  // namespace moonhalo
