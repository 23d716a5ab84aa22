// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "moonhalo/engine/model/distribute_parameters.h"

namespace moonhalo {

struct LocalMapOptions {
  /// Per input; nullopt (and inputs beyond the list): as it comes. A plain input with placements counts as replicated.
  std::vector<std::optional<Placements>> in_placements = {};
  /// Per result; nullopt: the block is handed on as it is.
  std::vector<std::optional<Placements>> out_placements = {};
  /// Per input, what its block's gradients make up, where the default does not do: for a replicated input Partial(sum)
  /// when the results are cut or Partial, Replicate when they are replicated; for a Partial one Replicate.
  std::vector<std::optional<Placements>> in_grad_placements = {};
  /// Bring inputs to in_placements; otherwise another placement is an error.
  bool redistribute_inputs = false;
  /// Without it, the mesh of the first ShardTensor among the inputs.
  MeshPtr mesh = nullptr;
};

/// Code that knows nothing of ranks (an operator of yours without a rule) as one that takes ShardTensors: calls
/// `function` with every rank's blocks and makes ShardTensors of its results, whose block sizes are exchanged.
/// Gradients flow. Collective over the mesh. Undefined inputs and results stay. Without a mesh, in the options or of a
/// ShardTensor: `function(inputs)`. Errors count arguments and results from 1. ValueError for inputs in other
/// placements, for fewer results than out_placements, and where the gradient of a replicated input is left open because
/// some results are cut and some replicated.
std::vector<at::Tensor> local_map(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs, const LocalMapOptions& options);

}  // namespace moonhalo
