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

/// Reads this rank's block of a selection as a plain CPU tensor. The selection's shape is the spec's global shape. Only
/// the elements of the block and its halo are read. Not collective.
at::Tensor read_block(const Selection& source, const ShardSpec& spec, const ReadOptions& options = {},
                      const BlockHalo& halo = {});

}  // namespace moonhalo::io

namespace moonhalo {

/// Settings of scatter_tensor for files.
struct ScatterOptions {
  /// The dtype of the result; the default is as in io::ReadOptions.
  std::optional<at::ScalarType> dtype = {};
  bool decode = false;  ///< as in io::ReadOptions
  int64_t halo = 0;     ///< for scatter_with_halo; must be 0 for scatter_tensor
};

/// Reads a dataset, or a part of one, as a ShardTensor. Each rank reads only its block; ranks along replicated mesh
/// dims each read their own copy.
///
///     file   |0 1 2 3 4 5 6 7 8|       Shard(0, {4, 3, 2})
///     reads   rank 0 |1    |2
///
/// Every rank opens the file itself and passes the same selection. Collective over the mesh. Throws on every rank:
/// ValueError for placements that do not fit, selections that differ between ranks and values that do not fit `dtype`.
/// If a rank fails to read (a truncated file), all ranks throw its error.
at::Tensor scatter_tensor(const io::Selection& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          const ScatterOptions& options = {});

/// Results of scatter_with_halo.
struct ScatteredHalo {
  at::Tensor tensor;  ///< ShardTensor of the owned rows
  at::Tensor padded;  ///< this rank's block with halo: a plain tensor with its own memory
};

/// Does the same with a halo of `options.halo` rows on both sides of every sharded dim, clipped at the ends of the
/// domain. Halos are read from the file, so they may be wider than a neighbour's block. Collective over the mesh. Also
/// throws ValueError for a negative halo and one that differs between ranks.
ScatteredHalo scatter_with_halo(const io::Selection& source, const MeshPtr& mesh,
                                const std::vector<Placement>& placements, const ScatterOptions& options);

// io::File::write(name, shard_tensor) writes a ShardTensor, see io/fields/write_together.h.

}  // namespace moonhalo
