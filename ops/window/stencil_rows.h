// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/ops/window/stencil.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

/// A stencil for a dim of `extent` rows, ready to apply to any part of it. Plain tensors, not collective.
class StencilRows {
 public:
  /// Throws what stencil() throws. `dim` is wrapped into `shape`.
  StencilRows(const Stencil& options, at::IntArrayRef shape, at::ScalarType dtype);

  int64_t dim() const { return dim_; }
  Boundary boundary() const { return boundary_; }
  /// Rows that the outputs `out` read, which may leave the domain; at least `out` itself. {0, 0} for no output.
  Interval needed(const Interval& out) const;
  /// `rows` holds needed(out) along the dim: the outputs.
  at::Tensor apply(const at::Tensor& rows, const Interval& out) const;
  /// From a gradient of the outputs to one of needed(out).
  at::Tensor adjoint(const at::Tensor& grad, const Interval& out) const;
  /// The same for a whole dim: from [0, extent) to [0, extent).
  at::Tensor apply_whole(const at::Tensor& x) const;
  at::Tensor adjoint_whole(const at::Tensor& grad) const;

 private:
  /// Calls each(first output, number, first row read, weight) for the outputs of `out`, by global rows.
  void for_each_run(const Interval& out, const std::function<void(int64_t, int64_t, int64_t, double)>& each) const;
  /// For rows beyond an end of the domain, which rows they stand for (none for zeros).
  at::Tensor stands_for(const Interval& beyond, const at::Tensor& like) const;

  int64_t dim_ = 0, extent_ = 0;
  std::vector<int64_t> offsets_;
  std::vector<double> weights_;
  Boundary boundary_ = Boundary::kZero;
  // One-sided: a number of rows at each end has formulas of its own, from that many rows at the end: [row][point].
  int64_t edge_rows_ = 0, edge_points_ = 0;
  std::vector<double> low_, high_;
};

}  // namespace moonhalo
