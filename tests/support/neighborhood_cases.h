// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/operator.h"

namespace moonhalo::testing {

/// One call of neighbourhood attention, by its sizes.
struct NeighborhoodCase {
  const char* name;
  std::vector<int64_t> dims;
  Neighborhood n;
  int64_t head_dim = 5, value_dim = 5, batch = 1, heads = 2;
  std::optional<double> scale = std::nullopt;
};

/// One to three dims, windows odd, even, as long as the dim, strides, dilations, causal dims, scales, wide and narrow
/// features.
const std::vector<NeighborhoodCase>& neighborhood_cases();

/// And how its dims are cut. An empty list of blocks: not at all.
struct NeighborhoodBlocks {
  NeighborhoodCase c;
  std::vector<std::vector<int64_t>> blocks;
};

/// Blocks of one row and of none, grids, and more queries than a tile of the CUDA kernels holds, with neighbours on all
/// sides.
const std::vector<NeighborhoodBlocks>& neighborhood_block_cases();
/// Features in the multiples of 16 that tensor cores take.
const std::vector<NeighborhoodBlocks>& neighborhood_tensor_cases();

/// Query, key and value, in (-2, 2): the same values for every type, but for rounding.
std::vector<at::Tensor> inputs_of(const NeighborhoodCase& c, at::ScalarType type);

/// Gradients of output and logsumexp, in the types that these have.
struct NeighborhoodCotangents {
  at::Tensor output, logsumexp;
};
NeighborhoodCotangents cotangents_of(const NeighborhoodCase& c, at::ScalarType type);

struct NeighborhoodResults {
  at::Tensor output, logsumexp, query, key, value;  ///< the last three are gradients
};
using AttendBlock = std::function<NeighborhoodResults(const std::vector<at::Tensor>&, const NeighborhoodCall&,
                                                      const NeighborhoodCotangents&)>;

/// Calls `attend` with one block after the other, as ranks would: its queries, and keys and values as far as these
/// reach. The gradients of keys and values are added up where they belong.
NeighborhoodResults in_blocks(const std::vector<at::Tensor>& inputs, const NeighborhoodCall& whole,
                              std::vector<std::vector<int64_t>> blocks, const NeighborhoodCotangents& given,
                              const AttendBlock& attend);

/// Adds a failure for each of the five that differs.
void expect_near(const NeighborhoodResults& actual, const NeighborhoodResults& expected, double tolerance,
                 const std::string& name);

}  // namespace moonhalo::testing
