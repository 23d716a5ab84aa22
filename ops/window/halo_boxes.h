// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

/// Part of what a rank borrows: a box of the global index space that it does not own.
struct BorrowedBox {
  std::shared_ptr<const IntervalMap> map;  ///< brings it
  Box box;                                 ///< of this rank; within the domain, empty where it lacks nothing
};

/// What ranks lack of the boxes that they need, as disjoint boxes, so that nothing travels twice: two per dim of `cut`,
/// those of the first dim reach over the corners.
///
///     +---------------+
///     | low of dim 2  |
///     +---+-------+---+
///     |dim|       |dim|
///     | 3 | owned | 3 |
///     +---+-------+---+
///     | high of dim 2 |
///     +---------------+
///
/// `need(dim, rank)`: the rows that a rank needs along a dim of `cut`, beyond the domain too; no rows along one dim: it
/// needs nothing.
/// The same answers on every rank. Along other dims a rank needs what it owns.
std::vector<BorrowedBox> borrowed_boxes(const SpecPtr& input, const std::vector<int64_t>& cut,
                                        const std::function<Interval(int64_t dim, int64_t rank)>& need);

/// A box that is known: `data` has its shape.
struct Piece {
  at::Tensor data;
  Box box;
};

/// `box` put together from disjoint pieces that may reach beyond it; `fill` where there is none.
at::Tensor assemble(const Box& box, const std::vector<Piece>& pieces, const at::Scalar& fill);

}  // namespace moonhalo
