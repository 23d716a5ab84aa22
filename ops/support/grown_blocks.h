// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Returns `sizes`, the blocks of a result of which block b has growth[b] rows more than that of the input. Balanced
/// blocks instead, where set_output_cut says "rebalance", or, by default, where a block has more than 1.25 times the
/// rows of a balanced one because of what it grows by.
std::vector<int64_t> grown_sizes(std::vector<int64_t> sizes, at::IntArrayRef growth);

/// The cut of a tensor of `extent` rows of which `picked` cuts the rows start, start + step, ...: a gradient that is
/// zero elsewhere, or to which windows add that begin there. These rows stay where they are (cut_around), unless
/// grown_sizes says otherwise because of a block that consists mostly of others.
Cut grown_cut(const Cut& picked, int64_t extent, int64_t start, int64_t step);

}  // namespace moonhalo
