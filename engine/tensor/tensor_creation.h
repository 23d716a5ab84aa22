// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo {

/// While this lives, operators on blocks are not recorded: the gradients of ShardTensors are connected explicitly.
using BelowAutograd = at::AutoDispatchBelowADInplaceOrView;

/// `grad` as a ShardTensor of spec `to`; a plain gradient is the same on all ranks. Collective where it moves.
at::Tensor gradient_of(const at::Tensor& grad, const SpecPtr& to);

/// Throws a ValueError that begins with `what` where there is no mesh, or not one placement for each of its dims.
void check_placements(const MeshPtr& mesh, const std::vector<Placement>& placements, const char* what);

/// "DeviceMesh(...): Shard(0), Replicate()", for messages and fingerprints of calls.
std::string placed_text(const MeshPtr& mesh, const std::vector<Placement>& placements);

}  // namespace moonhalo
