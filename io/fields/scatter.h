// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/block_halo.h"
#include "moonhalo/io/fields/domain_file.h"

namespace moonhalo::io {

/// This rank's block of a selection whose shape is the spec's global shape, as a plain CPU tensor:
/// only that block's (and halo's) elements are read. Local to the rank.
at::Tensor read_block(const Selection& source, const ShardSpec& spec, const ReadOptions& options = {},
                      const BlockHalo& halo = {});

}  // namespace moonhalo::io

namespace moonhalo {

struct ScatterOptions {
  std::optional<at::ScalarType> dtype = {};
  bool decode = false;  ///< as io::ReadOptions
  int64_t halo = 0;     ///< of scatter_with_halo; 0 for scatter_tensor, as a ShardTensor holds owned rows
};

/// A dataset, or a part of one, as a ShardTensor: each rank reads just its block, replicated mesh
/// dims each their own.
///
///     file   |0 1 2 3 4 5 6 7 8|       Shard(0, {4, 3, 2})
///     reads   rank 0 |1    |2          no rank holds another's rows
///
/// Collective over the mesh. Every rank opens the file itself and passes the same selection. Throws
/// on every rank alike: ValueError for placements that do not fit, selections that differ between
/// ranks or values that do not fit `dtype`; and when any rank fails to read (a file cut short),
/// that rank's error.
at::Tensor scatter_tensor(const io::Selection& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          const ScatterOptions& options = {});

struct ScatteredHalo {
  at::Tensor tensor;  ///< ShardTensor over the owned rows
  at::Tensor padded;  ///< this rank's block with its halo, a plain tensor with memory of its own
};

/// The same with `options.halo` rows more on both sides of every dim that is cut, but none beyond the domain; they are
/// read from the file, so that they may be more than a neighbour has. ValueError, too, for a halo below 0 or one that
/// differs between ranks.
ScatteredHalo scatter_with_halo(const io::Selection& source, const MeshPtr& mesh,
                                const std::vector<Placement>& placements, const ScatterOptions& options);

// The way back is io::File::write(name, shard_tensor), see io/fields/write_together.h.

}  // namespace moonhalo
