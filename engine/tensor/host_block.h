// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/sharding/box_grid.h"

namespace moonhalo {

/// A rank's block of a field in the memory of a simulation code. It may have any strides and ghost cells around the
/// owned rows. Lists have one entry per dim, in the order of the tensor's dims.
struct Block {
  void* data = nullptr;                  ///< host address of the element at index 0 of every dim, ghosts included
  at::ScalarType dtype = at::kDouble;    ///< of the elements
  std::vector<int64_t> extent;           ///< ghosts included; 0: no memory and no ghosts
  std::vector<int64_t> stride = {};      ///< in elements; empty: packed, the last dim fastest
  std::vector<int64_t> ghost_low = {};   ///< empty: none
  std::vector<int64_t> ghost_high = {};  ///< empty: none
  std::vector<int64_t> begin = {};       ///< where the owned rows begin in the whole field; empty: at 0
  std::vector<int64_t> global = {};      ///< extents of the whole field; empty: derived from the boxes of all ranks

  /// Returns the owned rows as a box of the whole field.
  OwnedBox box() const;
  /// Returns the owned rows as a plain tensor over the caller's memory. Throws ValueError for inconsistent numbers.
  at::Tensor owned() const;
  /// Returns the whole block, ghosts included, as a plain tensor over the caller's memory. Call owned() first: it
  /// checks the numbers.
  at::Tensor with_ghosts() const;
};

/// Returns the ShardTensor whose block on this rank is `block`, without ghosts. Nothing is copied: a write to the
/// tensor writes to the caller's memory, which must outlive it. The boxes of all ranks are exchanged. Collective over
/// the mesh. Throws ValueError on every rank if the blocks contradict each other or do not match `mesh`.
at::Tensor as_shard_tensor(const Block& block, const MeshPtr& mesh);

/// Does the same for blocks whose partition is known (gather_grid). Not collective.
at::Tensor as_shard_tensor(const Block& block, const SpecPtr& spec);

/// Returns the grid that the blocks of the ranks of `group` form. Collective over `group`. Throws as above.
BoxGrid gather_grid(const Block& block, Communicator& group);

}  // namespace moonhalo
