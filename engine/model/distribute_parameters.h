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

/// A parameter or buffer of a model, and what a plan says of it.
struct PlannedTensor {
  std::string name;  ///< in the model, such as "blocks.0.weight"; for errors
  at::Tensor tensor;
  ModulePlan::Tensor plan;
};

/// The ShardTensor leaves that take the place of a model's tensors, in order, with the same requires_grad. Undefined
/// where a tensor stays as it is: one that is undefined, and a ShardTensor that the plan does not list.
///
/// Other ShardTensors are redistributed; of deferred tensors (deferred.h) only the owned block is made. A tensor that
/// stands in several places is placed once, as the entry says that the plan lists. A gradient that a tensor has goes
/// with it.
///   src_data_rank     mesh rank whose tensors count; without it every rank cuts its own copy, which must be equal, and
///                     nothing is sent
///   is_model_sharded  every rank's tensors are its blocks, cut as the plan says; nothing is sent but block sizes
/// Collective over the mesh. ValueError, before anything moves, where two listed entries of one tensor differ.
std::vector<at::Tensor> distribute_parameters(const std::vector<PlannedTensor>& tensors, const MeshPtr& mesh,
                                              std::optional<int64_t> src_data_rank, bool is_model_sharded);

/// From now on the gradient of this ShardTensor leaf comes back with `placements` (Replicate: reduced at once). Block
/// sizes that they leave open are the leaf's. Nothing for a leaf that needs no gradient.
void place_gradient(const at::Tensor& leaf, const Placements& placements);

/// Carries out what a plan says of one argument or result; `where` names it in errors. Undefined tensors pass. Of a
/// tensor that lives on a larger part of the mesh that `mesh` is a slice of, what the slice lacks stays as it is, and
/// no local block is taken out, since plain it would count as replicated over the rest. Collective unless nothing
/// moves. Differentiable.
at::Tensor redistribute_argument(const at::Tensor& value, const MeshPtr& mesh, const ArgumentPlan& plan,
                                 const std::string& where);
/// The same for several; the messages of those that the plan calls async travel together.
std::vector<at::Tensor> move_arguments(const std::vector<at::Tensor>& values, const MeshPtr& mesh,
                                       const std::vector<ArgumentPlan>& plans, const std::string& where);

/// This rank's block for a function that knows nothing of ranks; its gradient comes back with the placements `gradient`
/// (Partial where every rank contributes a part of it).
at::Tensor to_local(const at::Tensor& tensor, const Placements& gradient);

}  // namespace moonhalo
