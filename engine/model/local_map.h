// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "moonhalo/engine/model/distribute_parameters.h"

namespace moonhalo {

/// The placements of local_map: lists have one entry per input or result.
struct LocalMapOptions {
  /// Per input: the placements that it must have. nullopt, and inputs beyond the list: any. A plain input with
  /// placements counts as replicated.
  std::vector<std::optional<Placements>> in_placements = {};
  /// Per result: the placements of the ShardTensor that is made of it. nullopt: the block is returned as a plain
  /// tensor.
  std::vector<std::optional<Placements>> out_placements = {};
  /// Per input: the placements of its gradient. The default for a replicated input is Partial(sum) if the results are
  /// sharded or Partial, and Replicate if they are replicated; for a Partial input it is Replicate.
  std::vector<std::optional<Placements>> in_grad_placements = {};
  /// Redistribute inputs to in_placements. If false, other placements are an error.
  bool redistribute_inputs = false;
  /// The default is the mesh of the first ShardTensor among the inputs.
  MeshPtr mesh = nullptr;
};

/// Calls `function` on each rank's blocks of `inputs` and makes ShardTensors of its results. It is meant for code that
/// does not support ShardTensors, such as a custom operator without a rule. Block sizes of the results are exchanged.
/// Differentiable. Collective over the mesh. Undefined inputs and results stay undefined. If there is no mesh, neither
/// in the options nor of a ShardTensor, it returns `function(inputs)`. Errors count arguments and results from 1.
/// Throws ValueError for inputs with other placements, for fewer results than out_placements, and if the gradient
/// placements of a replicated input are not given and cannot be derived because some results are sharded and others
/// replicated.
std::vector<at::Tensor> local_map(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const LocalMapOptions& options);

}  // namespace moonhalo
