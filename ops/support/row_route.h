// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

/// The rows of a table that entries name: of each entry the rank of the mesh that holds the row, and the number of the
/// row in that rank's table. 1-D, int64.
struct NamedRows {
  at::Tensor holder, row;
};

/// Takes rows of a cut table to the ranks that ask for them, and sums of what is added to them back. A row that a rank
/// asks for several times is sent once.
///
///     rank 0 has rows 0 1 2, its entries name 0 2 3 3     row 3 comes from rank 1
///     rank 1 has rows 3 4 5, its entries name 4 2         row 2 comes from rank 0
class RowRoute {
 public:
  /// Every rank has its own entries, and asks for the rows. `most`: no rank's table has more rows. Collective.
  static RowRoute ask(MeshPtr mesh, const NamedRows& mine, int64_t most);
  /// Every rank has all entries, those of the ranks `asker` (1-D, of the mesh); nothing is sent.
  static RowRoute known(MeshPtr mesh, const NamedRows& all, const at::Tensor& asker, int64_t most);
  /// Entries of rows that other ranks hold are left out: these ranks have the same entries.
  static RowRoute own(MeshPtr mesh, const NamedRows& mine);

  /// The rows of `table` along `dim` that this rank's entries name, in their order. Collective.
  at::Tensor fetch(const at::Tensor& table, int64_t dim) const;
  /// Adds `alpha` times `entries`, by entry along `dim`, to the rows of `table`, in place. Collective.
  void add(const at::Tensor& entries, int64_t dim, const at::Scalar& alpha, const at::Tensor& table) const;

 private:
  RowRoute(MeshPtr mesh, const NamedRows& mine, int64_t most);

  MeshPtr mesh_;
  bool exchanges_ = false;  // the same on every rank
  // Rows of this rank's table by entry; where there are others, their entries have 0 in `every_`.
  at::Tensor every_, near_entries_, near_rows_;
  // Entries of other ranks' rows, and the places of these rows among all that arrive. Undefined without any.
  at::Tensor far_entries_, far_rows_;
  at::Tensor asked_;                                // numbers of the rows that arrive, in the order of their holders
  std::vector<std::pair<int, int64_t>> arrives_;    // rank, rows
  std::vector<std::pair<int, at::Tensor>> serves_;  // rank, rows of this rank's table
};

}  // namespace moonhalo
