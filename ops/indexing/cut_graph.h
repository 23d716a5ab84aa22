// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moonhalo {

/// An order of a graph's edges in which those of one block of nodes follow one another, and how many each block has.
struct GraphCut {
  at::Tensor order;            ///< [E] int64: numbers of edges
  std::vector<int64_t> sizes;  ///< by block: shard(0, sizes) cuts the edges, once they are put in this order
};

/// Says which edges go with which nodes, so that an edge is on the rank of its target: messages are then added up where
/// they are, and only the rows of sources in other blocks are sent.
///
///     edges  [2, E] int64, plain: sources, targets
///     sizes  rows of each block of nodes
///
/// The edges of a block keep their order. ValueError for edges of another shape; IndexError for a node that does not
/// exist. Not collective: the same edges give the same order on every rank.
GraphCut cut_graph(const at::Tensor& edges, const std::vector<int64_t>& sizes);

}  // namespace moonhalo
