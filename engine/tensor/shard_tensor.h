// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A ShardTensor is an at::Tensor that is distributed over a mesh. Its sizes, dtype and device are those of the global
/// tensor; its data is this rank's block. LibTorch's operators accept it, forward and backward. With 3 ranks, a `full`
/// of shape [1, 3, 17, 8] and a weight of shape [4, 3, 3, 3]:
///
///     at::Tensor x = scatter_tensor(full, mesh, {shard(2)});               // x.sizes() is [1, 3, 17, 8]
///     at::Tensor y = at::conv2d(x, weight, /*bias=*/{}, /*stride=*/1, /*padding=*/1);
///     at::Tensor all = full_tensor(y);                                     // [1, 4, 17, 8], plain, on every rank
///
/// The blocks of x are [1, 3, 6, 8] on ranks 0 and 1 and [1, 3, 5, 8] on rank 2; those of y have 6, 6 and 5 rows as
/// well. conv2d receives one row of each neighbour's block. engine/README.md explains how calls are dispatched.
/// is_shard_tensor is true for such a tensor. Not collective.
bool is_shard_tensor(const at::Tensor& tensor);
/// Returns the spec of a ShardTensor. Throws TypeError for a plain tensor. Not collective.
const SpecPtr& spec(const at::Tensor& tensor);

/// Makes a ShardTensor whose block on each rank is `local`. Block sizes and strides are exchanged; block sizes in
/// `placements` are not needed. The tensor reports the strides of the blocks' common memory order; if there is none, or
/// the blocks have gaps, it reports strides for which contiguous() copies on every rank. Collective over the mesh.
/// Throws ValueError on every rank if the blocks differ in dtype or do not form a grid. Differentiable. Plain
/// parameters that the blocks were computed from (tensor_meaning.h) get the sum of their gradients over the ranks whose
/// blocks differ. Throws ValueError on every rank if another leaf that the blocks were computed from is equal on all of
/// these ranks, unless the program declared its meaning.
at::Tensor from_local(const at::Tensor& local, const MeshPtr& mesh, const std::vector<Placement>& placements);
/// Does the same for a known spec, without communication. `local` has the shape spec->local_shape(). The tensor reports
/// row-major strides whatever the strides of `local` are, so contiguous() returns it unchanged. Tensors that `local`
/// was computed from get the gradient of this rank's block alone. Not collective. Throws ValueError for a block of
/// another shape.
at::Tensor from_local(const at::Tensor& local, const SpecPtr& spec);

/// Distributes `full` from mesh rank `src` over the mesh; other ranks may pass an undefined tensor. Only blocks are
/// sent. Collective over the mesh. Differentiable, once: the whole gradient of `full` is on rank `src`, whose tensor
/// alone is used. Throws ValueError on every rank if `full` was computed from plain parameters of modules, because
/// every rank has these.
at::Tensor distribute_tensor(const at::Tensor& full, const MeshPtr& mesh, const std::vector<Placement>& placements,
                             int64_t src = 0);
/// Does the same, with messages that begin with this name.
at::Tensor scatter_tensor(const at::Tensor& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          int64_t src = 0);

/// Returns the same global tensor with other placements. Collective over the mesh unless nothing moves. Differentiable:
/// the gradient has the placements of `tensor` (with Replicate in place of Partial).
at::Tensor redistribute(const at::Tensor& tensor, const std::vector<Placement>& placements);
at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& to);
/// Does the same to another mesh of the same ranks, in any arrangement ({4} to {2, 2}). Collective over both meshes.
/// Throws ValueError if the meshes hold different ranks.
at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements);

/// A redistribute in progress. Its messages are in flight while the program continues. Partials are reduced before it
/// starts.
class PendingTensor {
 public:
  /// Returns the same as redistribute does, gradients included. Every rank that started it must call wait, but wait
  /// does not block on other ranks' waits. Later calls return the same tensor. Throws ValueError if the tensor was
  /// written since the start. Collective as the redistribute is.
  at::Tensor wait();

 private:
  friend PendingTensor redistribute_async(const at::Tensor& tensor, const SpecPtr& to);
  struct State;
  std::shared_ptr<State> state_;
};
/// Starts a redistribute to other placements, with the arguments of redistribute. Collective unless nothing moves.
/// Other collectives may be called before wait().
PendingTensor redistribute_async(const at::Tensor& tensor, const std::vector<Placement>& placements);
PendingTensor redistribute_async(const at::Tensor& tensor, const SpecPtr& to);
PendingTensor redistribute_async(const at::Tensor& tensor, const MeshPtr& mesh,
                                 const std::vector<Placement>& placements);
/// Returns the global tensor, of the same shape and dtype, as a plain tensor on every rank. Collective over the mesh.
/// Differentiable.
at::Tensor full_tensor(const at::Tensor& tensor);
/// Returns this rank's block as a plain tensor, without a copy; of a Partial, its addend (until an operator reduces the
/// tensor). It communicates only for a view that had to be copied and whose original was written since
/// (engine/tensor/README.md); then it is collective. Differentiable: each rank's gradient is that of its block, and
/// along replicated mesh dims it must be equal on all ranks.
at::Tensor to_local(const at::Tensor& tensor);

/// Returns the block sizes per mesh dim that shards: {mesh_dim -> sizes along the sharded tensor dim}. Not collective.
std::map<int64_t, std::vector<int64_t>> sharding_sizes(const at::Tensor& tensor);

/// The behaviour for operators without a sharding rule: gather the tensors to Replicate, with one warning per operator,
/// or throw.
enum class Fallback : uint8_t { kReplicate, kError };
/// Sets the behaviour of this thread (ranks may be threads) and returns the previous setting. Every rank must set the
/// same. Not collective.
Fallback set_fallback(Fallback fallback);

}  // namespace moonhalo
