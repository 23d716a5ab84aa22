// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/model/parallel_plan.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Returns `placements` with missing block sizes filled in from `spec`, where it shards that dim by the same mesh dims.
/// So "Shard(0)" moves nothing if dim 0 of the tensor is already sharded unevenly. Not collective.
Placements inherit_block_sizes(Placements placements, const ShardSpec& spec);

/// Returns a parameter or buffer as a ShardTensor leaf with the same requires_grad. A plain `tensor` is scattered from
/// mesh rank `src`; without `src`, each rank takes its block from its own copy, and the copies must be equal. A
/// ShardTensor is redistributed. Of a deferred tensor (deferred.h) only the owned block is made. Collective over the
/// mesh.
at::Tensor place_tensor(const at::Tensor& tensor, const MeshPtr& mesh, const Placements& placements,
                        std::optional<int64_t> src);

/// A parameter or buffer of a model and its entry in a plan.
struct PlannedTensor {
  std::string name;         ///< name in the model, such as "blocks.0.weight"; for errors
  at::Tensor tensor;        ///< plain, or a ShardTensor; undefined: left out
  ModulePlan::Tensor plan;  ///< where it goes
};

/// Returns the ShardTensor leaves that replace a model's tensors, in order, with the same requires_grad. An entry is
/// undefined if the tensor is not replaced: undefined tensors, and ShardTensors that the plan does not list.
///
/// Other ShardTensors are redistributed. Of deferred tensors (deferred.h) only the owned block is made. A tensor that
/// occurs several times is distributed once, according to the entry that the plan lists. Gradients are distributed with
/// their tensors.
///   src_data_rank     mesh rank whose tensors are scattered; without it every rank takes its block from its own copy,
///                     the copies must be equal, and nothing is sent
///   is_model_sharded  the tensors are already each rank's blocks, sharded as the plan says; only block sizes are sent
/// Collective over the mesh. Throws ValueError, before anything moves, if two listed entries of one tensor differ.
std::vector<at::Tensor> distribute_parameters(const std::vector<PlannedTensor>& tensors, const MeshPtr& mesh,
                                              std::optional<int64_t> src_data_rank, bool is_model_sharded);

/// Sets the placements of this ShardTensor leaf's gradient (Replicate: reduced in backward). Missing block sizes are
/// those of the leaf. Does nothing for a leaf that needs no gradient. Not collective.
void place_gradient(const at::Tensor& leaf, const Placements& placements);

/// Redistributes arguments or results as the plans say; `where` names them in errors. Undefined tensors are returned
/// unchanged. If the tensor's mesh is larger than its slice `mesh`, the placements along the other mesh dims stay, and
/// no local block is taken out, because as a plain tensor it would count as replicated over those dims. Collective
/// unless nothing moves. Differentiable. Messages of those that the plan marks async are in flight together.
std::vector<at::Tensor> move_arguments(const std::vector<at::Tensor>& values, const MeshPtr& mesh,
                                       const std::vector<ArgumentPlan>& plans, const std::string& where);

/// Returns this rank's block for a function that does not support ShardTensors. Its gradient has the placements
/// `gradient` (Partial if every rank contributes an addend). Not collective.
at::Tensor to_local(const at::Tensor& tensor, const Placements& gradient);

}  // namespace moonhalo
