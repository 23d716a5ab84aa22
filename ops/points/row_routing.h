// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Says which dims of a query [batch..., M, *] and of points [batch..., N, *] are cut, so that each rank can answer its
/// queries from the points that its line of ranks holds. The last dims are whole.
struct PointCuts {
  SpecPtr query, points;
  /// Batch dims follow whichever tensor is cut there; then M and N keep their cuts over the mesh dims that are left;
  /// then mesh dims that cut the points alone cut the queries too, inside the blocks that they have. Partials are
  /// resolved.
  PointCuts(const SpecPtr& query, const SpecPtr& points);

  /// The query's cuts for the shape [batch..., M, rest...].
  SpecPtr like_query(const std::vector<int64_t>& rest) const;
  /// The spec of a gradient of the points: a sum over the mesh dims that divide queries but not points.
  SpecPtr sum_like_points() const;

  /// The ranks of the mesh that hold the blocks of N beside this rank's, in the order of the blocks.
  std::vector<int> holders() const;
  /// Rows of N, by block.
  std::vector<Interval> blocks() const;
};

/// table [rows, D]; numbers, of any shape, in [0, rows]: [numbers..., D], zeros where a number is `rows`.
at::Tensor rows_at(const at::Tensor& table, const at::Tensor& numbers);
/// The adjoint: sums grad [numbers..., D] into [rows, D], in the order of the numbers.
at::Tensor add_rows_at(const at::Tensor& grad, const at::Tensor& numbers, int64_t rows);
/// Numbers of the rows of points [batch, n, D] in a table [batch * n, D] for indices [batch, ...]; -1 becomes batch *
/// n. IndexError where an index is not in [-1, n), on this rank alone.
at::Tensor row_numbers(const at::Tensor& indices, int64_t n, const char* op);

/// Returns the offsets from the query [batch, M, D] of rows [batch, M, K, D] for indices [batch, M, K] (-1: zeros).
at::Tensor offsets_of(const at::Tensor& rows, const at::Tensor& query, const at::Tensor& indices);
/// The query's part of the adjoint, [batch, M, D], for the gradient [batch, M, K, D] of the offsets.
at::Tensor query_gradient(const at::Tensor& grad, const at::Tensor& indices);

/// Rows of cut points, fetched by those who ask for them and sums sent home. Made and used by all ranks of the mesh
/// (collective).
class PointRoute {
 public:
  /// indices [batch, ...] of this rank, into N (-1: none). IndexError for others: if the points are cut on every rank,
  /// for the worst that any rank has; else on the rank that has them.
  PointRoute(const PointCuts& cuts, const at::Tensor& indices, const char* op);
  /// points [batch, n, D] of this rank: [indices..., D].
  at::Tensor fetch(const at::Tensor& points) const;
  /// grad [indices..., D]: [batch, n, D] of this rank.
  at::Tensor add(const at::Tensor& grad) const;

 private:
  /// Rows of D elements to those who asked for them (home = false), or back.
  at::Tensor travel(const at::Tensor& rows, bool home) const;

  MeshPtr mesh_;
  int64_t batch_ = 0, owned_ = 0;
  at::Tensor numbers_;                  // of the rows that this rank asks for; their number for none
  at::Tensor served_;                   // rows of this rank's table that others, rank by rank, ask for
  std::vector<int64_t> asks_, serves_;  // rows by rank
  int64_t largest_ = 0;                 // of these, on any rank
};

}  // namespace moonhalo
