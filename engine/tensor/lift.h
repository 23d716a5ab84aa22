// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A tensor of a slice as one of `mesh`, of which its mesh is a slice: `others` says what the dims of `mesh` that the
/// slice lacks do to it, in order. No data moves.
///     Replicate      the slices hold copies, which must be equal
///     Shard(dim)     each slice holds rows of a longer tensor; block sizes are exchanged
///     Partial(op)    each slice holds an addend
/// Collective over `mesh` where a Shard is among `others`. Differentiable. ValueError when the tensor's mesh is no
/// slice of `mesh` or `others` are not as many as it lacks, and where rows or addends of slices were computed from
/// parameters on the slice alone (tensor_meaning.h), whose gradients would not be summed over the slices.
/// NotImplementedError when a dim that the tensor is cut along would be cut further inside by a mesh dim that stands
/// behind (its rows would change their order).
at::Tensor lift(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& others);

/// Every rank's own samples as one tensor of the mesh that `data` is a slice of (or is): dim 0 is cut over the dims of
/// `data`, uneven and empty blocks included; the ranks of other dims must hold the same rows. A tensor without dims
/// counts as replicated. A ShardTensor of a slice holds the samples of its ranks, and is cut further over those dims of
/// `data` that the slice lacks; other ShardTensors stay as they are. Collective over that mesh: sizes are exchanged.
/// Differentiable. ValueError, on every rank alike, where blocks differ in dtype, number of dims or the size of another
/// dim.
at::Tensor local_batch(const at::Tensor& tensor, const MeshPtr& data);

/// The dims of `mesh` that are the dims of `slice`, in order; empty when it is no slice of it (nor the same mesh).
std::vector<int64_t> dims_of_slice(const DeviceMesh& mesh, const DeviceMesh& slice);

}  // namespace moonhalo
