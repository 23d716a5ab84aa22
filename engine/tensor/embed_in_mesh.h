// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Converts a tensor of a slice to a tensor of `mesh`, of which its mesh is a slice. `others` are the placements for
/// those dims of `mesh` that the slice lacks, in order. No data moves.
///     Replicate      the slices hold copies, which must be equal
///     Shard(dim)     each slice holds rows of a longer tensor; block sizes are exchanged
///     Partial(op)    each slice holds an addend
/// Collective over `mesh` if `others` has a Shard. Differentiable. Throws ValueError if the tensor's mesh is not a
/// slice of `mesh`, if the number of `others` is wrong, and if rows or addends of slices were computed from parameters
/// on the slice alone (tensor_meaning.h), because their gradients would not be summed over the slices. Throws
/// NotImplementedError if a sharded dim would be sharded again by a later mesh dim, because that would reorder its
/// rows.
at::Tensor embed_in_mesh(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& others);

/// Makes one tensor of every rank's own samples, on the mesh that `data` is a slice of (or `data` itself). Dim 0 is
/// sharded over the dims of `data`; blocks may be uneven or empty. Ranks that differ only along other dims must hold
/// the same rows. A 0-dim tensor counts as replicated. A ShardTensor of a slice holds the samples of that slice's
/// ranks; it is sharded over the remaining dims of `data` too. Other ShardTensors are returned unchanged. Collective
/// over that mesh: sizes are exchanged. Differentiable. Throws ValueError on every rank if blocks differ in dtype,
/// number of dims or the size of another dim.
at::Tensor local_batch(const at::Tensor& tensor, const MeshPtr& data);

/// Returns the dims of `mesh` that `slice` consists of, in order; empty if `slice` is neither a slice of `mesh` nor
/// `mesh`. Not collective.
std::vector<int64_t> dims_of_slice(const DeviceMesh& mesh, const DeviceMesh& slice);

}  // namespace moonhalo
