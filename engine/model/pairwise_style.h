// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "moonhalo/engine/model/parallel_plan.h"

namespace moonhalo {

/// Replaces every PairwiseParallel among the styles of `modules` (one each, or none) by ColwiseParallel and
/// RowwiseParallel of the linear layers in that module: of its own ones in turn where it has two or more (the last of
/// an odd number stays whole), else of those of its children by the same rule. Between a pair activations stay
/// ShardTensors, so whatever is computed there has the meaning of whole tensors. A module inside that has a
/// PairwiseParallel of its own keeps that. ValueError where there are no two layers that belong together, and for a
/// layer of a pair that has another style.
void pair_layers(std::vector<std::optional<ParallelStyle>>& styles, const std::vector<ModuleFacts>& modules);

}  // namespace moonhalo
