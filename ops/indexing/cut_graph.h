// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace moonhalo {

/// A permutation of a graph's edges that groups them by the block of their target node, and the number of edges per
/// block.
struct GraphCut {
  at::Tensor order;            ///< [E] int64: indices of the edges
  std::vector<int64_t> sizes;  ///< by block: shard(0, sizes) shards the edges in this order
};

/// Assigns each edge to the block of its target node. Messages are then summed without communication, and only rows of
/// source nodes in other blocks are sent.
///
///     edges  [2, E] int64, plain: sources, targets
///     sizes  rows of each block of nodes
///
/// Within a block the edges keep their order. Not collective: the same edges give the same result on every rank. Throws
/// ValueError for edges of another shape and IndexError for a node that does not exist.
GraphCut cut_graph(const at::Tensor& edges, const std::vector<int64_t>& sizes);

}  // namespace moonhalo
