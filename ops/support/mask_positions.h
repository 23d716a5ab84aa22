// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// `spec` with the dims [first, last) cut, if at all, in the first of them that has more than one row: then the
/// elements of those dims, in row-major order, are on the ranks one block after the other. Nothing changes where
/// that is so already; else the blocks are balanced over all mesh dims that cut any of them.
SpecPtr cut_in_front(const SpecPtr& spec, int64_t first, int64_t last);
/// The cut of `cut_in_front(spec, first, last)` among those dims.
const Cut& front_cut(const ShardSpec& spec, int64_t first, int64_t last);

/// Returns what every block of `cut` brings, where this rank brings `mine`. Collective over the mesh dims of the cut.
std::vector<int64_t> counts_of_blocks(const ShardSpec& spec, const Cut& cut, int64_t mine, at::Device device);
/// The number of the block of `cut` that a rank holds.
int64_t block_of(const DeviceMesh& mesh, const Cut& cut, int64_t rank);

/// The places of the true elements of a mask among all of them, in row-major order.
struct TruePlaces {
  at::Tensor places;  ///< int64, of the shape of the block; meaningless where the mask is false
  int64_t count = 0;  ///< of the whole mask
};
/// `mask` is this rank's block (bool) of a mask of spec `spec`, cut in any way. Collective over the mesh dims that
/// cut it; what is sent are counts per row, never the mask.
TruePlaces true_places(const at::Tensor& mask, const ShardSpec& spec);

}  // namespace moonhalo
