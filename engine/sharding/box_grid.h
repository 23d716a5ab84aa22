// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// The box that a rank owns of a field: per dim its first index in the whole field (`begin`) and its number of rows
/// (`extent`).
struct OwnedBox {
  std::vector<int64_t> begin;
  std::vector<int64_t> extent;
};

/// Describes how boxes, one per rank, partition a field.
struct BoxGrid {
  std::vector<int64_t> global;              ///< extents of the whole field
  std::vector<std::vector<int64_t>> sizes;  ///< per dim: rows of each block, in order
  std::vector<int64_t> place;               ///< by rank: row-major index of its block in the grid

  /// Returns the number of blocks along each sharded dim, in the order of the dims; {1} if no dim is sharded.
  std::vector<int64_t> mesh_shape() const;
  /// Returns the spec of this grid. `mesh` must have the shape mesh_shape(), not counting dims of size 1, and its ranks
  /// must be in the order of `place`; throws ValueError otherwise. Not collective.
  SpecPtr spec_on(const MeshPtr& mesh) const;
};

/// Returns the grid that `boxes` form; boxes are listed by rank. If `global` is empty, the boxes define the global
/// extents. Not collective. Throws ValueError that names dim, ranks and rows if boxes overlap, do not cover the field,
/// exceed `global` or form no grid. A rank without elements may give any position: its empty box becomes one more block
/// of the grid, at its given position if that yields a grid, else in rank order if that does.
BoxGrid grid_of(const std::vector<OwnedBox>& boxes, const std::vector<int64_t>& global);

}  // namespace moonhalo
