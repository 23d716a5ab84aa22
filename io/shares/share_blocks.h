// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo::io {

/// Where this rank's block of a tensor is in the whole; all of it for a plain tensor. Without dims: {0, 1}.
Box held_box(const at::Tensor& tensor);

/// Writes into `target`, plain or divided in any way and of any dtype, from blocks that the ranks of `mesh` hold: rank
/// r that at `owned[r]`, which do not overlap and are the whole together. `block`: this rank's, of that shape.
/// Collective over `mesh`.
void fill_from_blocks(const MeshPtr& mesh, const at::Tensor& target, const std::vector<Box>& owned,
                      const at::Tensor& block);

}  // namespace moonhalo::io
