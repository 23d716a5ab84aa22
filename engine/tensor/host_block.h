// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/box_grid.h"

namespace moonhalo {

/// A rank's part of a field as a simulation code holds it: any strides, with ghost cells around the rows that it owns.
/// Lists are per dim, in the order of the tensor that is made.
struct Block {
  void* data = nullptr;  ///< the element at index 0 of every dim, ghosts included; memory of the host
  at::ScalarType dtype = at::kDouble;
  std::vector<int64_t> extent;           ///< with ghosts; 0: no memory, and no ghosts either
  std::vector<int64_t> stride = {};      ///< in elements; empty: packed, the last dim fastest
  std::vector<int64_t> ghost_low = {};   ///< empty: none
  std::vector<int64_t> ghost_high = {};  ///< empty: none
  std::vector<int64_t> begin = {};       ///< where the owned rows begin in the whole field; empty: at 0
  std::vector<int64_t> global = {};      ///< extents of the whole; empty: what the boxes of all ranks cover

  OwnedBox box() const;
  /// The owned rows, in place: a plain tensor over the caller's memory. ValueError when the numbers do not fit
  /// together.
  at::Tensor owned() const;
  /// The block as it lies in memory, ghosts included; for numbers that owned() takes.
  at::Tensor with_ghosts() const;
};

/// The field whose block on this rank is `block`, in place: nothing is copied, ghosts are left out, and who writes to
/// the tensor writes to the caller's memory, which must outlive it. Collective over the mesh: boxes are exchanged.
/// ValueError, on every rank alike, when the blocks contradict each other or are not the blocks of `mesh`.
at::Tensor as_shard_tensor(const Block& block, const MeshPtr& mesh);

/// The same where the ranks know how their blocks divide the field (gather_grid). No communication.
at::Tensor as_shard_tensor(const Block& block, const SpecPtr& spec);

/// Returns the grid that the blocks of the ranks of `group` form. Collective; errors as above.
BoxGrid gather_grid(const Block& block, Communicator& group);

}  // namespace moonhalo
