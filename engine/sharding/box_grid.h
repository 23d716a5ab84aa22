// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The rows that a rank owns of a field: where they begin in the whole, and how many, per dim.
struct OwnedBox {
  std::vector<int64_t> begin;
  std::vector<int64_t> extent;
};

/// Describes how the boxes of all ranks, one each, divide a field.
struct BoxGrid {
  std::vector<int64_t> global;              ///< extents of the whole
  std::vector<std::vector<int64_t>> sizes;  ///< per dim, rows of each block in order
  std::vector<int64_t> place;               ///< by rank: its row-major place among the blocks

  /// Blocks along the dims that are cut, in the order of dims; {1} when none is.
  std::vector<int64_t> mesh_shape() const;
  /// On a mesh of that shape (dims of one rank aside), whose ranks stand in the order of `place`. ValueError otherwise.
  SpecPtr spec_on(const MeshPtr& mesh) const;
};

/// The grid that `boxes`, given by rank, form. `global` is empty where the boxes say how large the whole is. No
/// communication. ValueError naming dim, ranks and rows when boxes overlap, leave rows to no rank, reach beyond
/// `global` or form no grid. A rank without elements need not say where it lies: its box becomes a further block of the
/// grid, where it says if that makes one, and in the order of ranks if that makes the same.
BoxGrid grid_of(const std::vector<OwnedBox>& boxes, const std::vector<int64_t>& global);

}  // namespace moonhalo
