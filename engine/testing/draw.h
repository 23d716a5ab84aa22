// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/testing/same_as_plain.h"

namespace moonhalo::testing {

/// Numbers that depend on the seed alone, so that a case is the same in every run and on every machine.
class SeededNumbers {
 public:
  explicit SeededNumbers(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t n);  ///< in [0, n)
  bool percent(int64_t chance) { return below(100) < chance; }

 private:
  uint64_t state_;
};

/// Rows of `blocks` blocks of a dim, zero allowed: balanced, all in one block, or any.
std::vector<int64_t> draw_sizes(SeededNumbers& draw, int64_t extent, int64_t blocks);

/// Placements of each tensor over a mesh of this shape, one list for each; an empty list is a plain tensor. Tensor
/// `first` is cut along a dim, the others may be replicated, cut otherwise, pending sums or plain. Tensors without dims
/// are plain.
std::vector<std::vector<Placement>> draw_placements(SeededNumbers& draw, const std::vector<at::Tensor>& tensors,
                                                    const std::vector<int64_t>& mesh_shape, size_t first);

/// As source: `{{shard(2, {0, 11, 6})}, {}}`, to be pasted into a test.
std::string source_of(const std::vector<std::vector<Placement>>& placements, const PlacementNames& names = {});

}  // namespace moonhalo::testing
