// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "moonhalo/engine/exchange/halo_source.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/tensor/host_block.h"

namespace moonhalo {

/// A field of a solver that has filled its ghosts, corners too, with the rows of its neighbours.
///
///     rank 0   [ 0 1 2 3 | g4 g5 ]             a 5-row stencil along a cut dim reads g4, g5 and g2, g3 in place of
///     rank 1         [ g2 g3 | 4 5 6 7 ]       exchanging rows
struct HostHalos {
  at::Tensor field;                                       ///< ShardTensor over the owned rows
  at::Tensor whole;                                       ///< this rank's block with its ghosts, in place
  std::vector<std::vector<int64_t>> low = {}, high = {};  ///< widths per rank and dim
};
/// Gathers the widths of all ranks of the field's mesh. Collective; ValueError, on every rank, when a block is
/// empty: a rank that owns nothing has no ghosts.
HostHalos host_halos(const at::Tensor& field, const Block& block);

/// While one lives, operators on this thread's rank take rows from these ghosts instead of exchanging them, where
/// they contain all that all ranks need. They read the field itself, or what holds its values in their order (view,
/// clone, unsqueeze), made while this lives. As soon as an operator writes any ShardTensor in place, rows are
/// exchanged again. So all ranks decide the same. A block that is written through to_local() is found where it is
/// read; memory that the solver writes meanwhile is not.
class UseFilledGhosts {
 public:
  explicit UseFilledGhosts(const std::vector<HostHalos>& fields);
  ~UseFilledGhosts();
  UseFilledGhosts(const UseFilledGhosts&) = delete;
};

/// True while any could be used.
bool ghosts_are_filled();
/// Called on every rank when an operator writes a ShardTensor.
void invalidate_host_halos();
/// The filled ghosts around the block of a ShardTensor that operator `op` reads. Where they lack rows that any rank
/// needs, and after a write, there are none. ValueError on a rank whose block was written without the ShardTensor.
HaloSource ghosts_of(const at::Tensor& tensor, const std::string& op);

}  // namespace moonhalo
