// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// `placements` for the tensor of spec `spec`: block sizes that they leave open are the tensor's own where it is cut by
/// the same mesh dims along that dim, so that "Shard(0)" moves nothing in a tensor whose dim 0 is cut unevenly.
Placements inherit_block_sizes(Placements placements, const ShardSpec& spec);

/// A parameter or buffer as a ShardTensor leaf with the same requires_grad. Collective. A plain `tensor` comes from
/// mesh rank `src` or, without it, from each rank's own copy, which must be equal; a ShardTensor is redistributed; of a
/// deferred one (deferred.h) only the owned block is made.
at::Tensor place_tensor(const at::Tensor& tensor, const MeshPtr& mesh, const Placements& placements,
                        std::optional<int64_t> src);

/// A rank's own block of a parameter or buffer as a ShardTensor leaf with the same requires_grad. Collective: block
/// sizes that `placements` leaves open are exchanged. `where` names the tensor in errors.
at::Tensor adopt_local_block(const at::Tensor& block, const MeshPtr& mesh, const Placements& placements,
                             const std::string& where);

/// From now on the gradient of this ShardTensor leaf comes back with `placements` (Replicate: reduced at once). Block
/// sizes that they leave open are the leaf's. Nothing for a leaf that needs no gradient.
void place_gradient(const at::Tensor& leaf, const Placements& placements);

/// Carries out what a plan says of one argument or result; `where` names it in errors. Undefined tensors pass. Of a
/// tensor that lives on a larger part of the mesh that `mesh` is a slice of, what the slice lacks stays as it is, and
/// no local block is taken out, since plain it would count as replicated over the rest. Collective unless nothing
/// moves. Differentiable.
at::Tensor redistribute_argument(const at::Tensor& value, const MeshPtr& mesh, const ArgumentPlan& plan,
                                 const std::string& where);
/// As above for several; the messages of those that the plan calls async travel together.
std::vector<at::Tensor> move_arguments(const std::vector<at::Tensor>& values, const MeshPtr& mesh,
                                       const std::vector<ArgumentPlan>& plans, const std::string& where);

/// This rank's block for a function that knows nothing of ranks; its gradient comes back with the placements `gradient`
/// (Partial where every rank contributes a part of it).
at::Tensor to_local(const at::Tensor& tensor, const Placements& gradient);

}  // namespace moonhalo
