// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::io {

// Says which rank writes, or reads, which part of a ShardTensor that is whole and row-major in a file. Pure: decided
// from specs, which all ranks hold, so nothing is negotiated.

constexpr int64_t kSmallBytes = 64 << 10;  ///< less is not a work to share
constexpr int64_t kShortRun = 32 << 10;    ///< runs of bytes that a disk takes badly

/// Every element of the tensor is in one rank's box. A tensor without dims counts as one of shape {1}, so that a box
/// can be empty.
struct FileShares {
  std::vector<int64_t> shape;
  std::vector<Box> boxes;  ///< by rank of the mesh
  bool moves = false;      ///< some box is not part of its rank's block: its elements are sent
};

/// Ranks that hold equal blocks share the block's rows, or, if it is small, the one with the fewest bytes so far
/// has it. Where blocks are many short runs of the file (a cut of an inner dim), boxes are rows of the whole tensor
/// instead, and elements are sent. `bytes` is what each rank has so far and grows by this tensor's. Partial counts
/// as Replicate.
FileShares share_out(const ShardSpec& spec, int64_t element_bytes, std::vector<int64_t>& bytes,
                     int64_t short_run = kShortRun);

/// Pieces of a box along its first dims, each of at most `limit` bytes (but of one element at least), in row-major
/// order.
std::vector<Box> pieces_of(const Box& box, int64_t element_bytes, int64_t limit);

/// Calls visit(offset, length) for each run of bytes that a box takes in a row-major tensor of `shape`, in the order of
/// the box's own elements.
void for_each_run(const std::vector<int64_t>& shape, const Box& box, int64_t element_bytes,
                  const std::function<void(int64_t offset, int64_t length)>& visit);
int64_t count_runs(const std::vector<int64_t>& shape, const Box& box);

}  // namespace moonhalo::io
