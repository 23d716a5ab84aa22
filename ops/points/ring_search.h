// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>
#include <vector>

#include "moonhalo/ops/points/kd_search.h"
#include "moonhalo/ops/points/row_routing.h"

namespace moonhalo {

/// One search of cut queries among cut points, as a rank takes part in it. What is sent along a line of ranks that
/// share the points is what is less, by figures that all ranks hold:
///
///     points    ranks      0     1     2       step 0: each searches its own block, while the next one comes from the
///               right
///               queries    q0    q1    q2      step 1: q0 in p1, q1 in p2, q2 in p0, while ...
///               points     p0 <- p1 <- p2 <- p0
///     queries   every rank searches its block for all queries, and sends the candidates home, where they are joined
class PointRound {
 public:
  PointRound(const PointCuts& cuts, int64_t most, std::optional<double> radius, at::ScalarType dtype);
  /// query [batch..., M, D], points [batch..., n, D] of this rank. Collective over the mesh.
  NeighborLists search(const at::Tensor& query, const at::Tensor& points) const;

 private:
  NeighborLists pass_points(const at::Tensor& query, at::Tensor block) const;
  NeighborLists pass_queries(const at::Tensor& query, const at::Tensor& block) const;
  NeighborLists lists_for(const at::Tensor& query) const;

  MeshPtr mesh_;
  std::vector<Interval> blocks_;  // of the points
  std::vector<int> holders_;      // ranks, by block
  std::vector<int64_t> queries_;  // of each holder
  int64_t own_ = 0, batch_dims_, most_;
  std::optional<double> radius_;
  bool queries_are_sent_ = false;
};

}  // namespace moonhalo
