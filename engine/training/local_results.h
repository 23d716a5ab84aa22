// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Says that every rank of `data` makes a loss of its own of this rank's block of a module's results, and that the mean
/// of their gradients is wanted. Then plain parameters, which such results may meet where no ShardTensor does (a head
/// that is an ordinary module), have other gradients on every rank. A note is forgotten with its mesh, which all ranks
/// must keep until the same step. Collective over `data`.
void note_local_results(const MeshPtr& data);

/// Gives plain parameters that have met no ShardTensor the mean of their gradients over the ranks that
/// note_local_results was told of; a rank without a gradient counts as zero. Equal gradients stay what they are.
/// Nothing happens before a note. Collective over those ranks, in one message for each dtype.
void average_local_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
