// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// Says that every rank of `data` makes a loss of its own of this rank's block of a module's results, and that the
/// mean of their gradients is required. Then plain parameters, which are combined with such results where no
/// ShardTensor is (a head that is an ordinary module), have other gradients on every rank. A note is forgotten with
/// its mesh, which all ranks must keep until the same step. Collective over `data`.
void register_local_loss_mesh(const MeshPtr& data);

/// Averages the gradients of plain parameters that were never combined with a ShardTensor over the ranks that were
/// given to register_local_loss_mesh; a rank without a gradient counts as zero. Equal gradients stay what they are.
/// Nothing happens before a note. Collective over those ranks, in one message for each dtype.
void average_local_gradients(const std::vector<at::Tensor>& parameters);

}  // namespace moonhalo
