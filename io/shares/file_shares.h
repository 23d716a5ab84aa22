// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo::io {

// Decides which rank writes, or reads, which part of a ShardTensor that is stored whole and row-major in a file. All
// ranks compute the same answer from the spec, so nothing is sent.

constexpr int64_t kSmallBytes = 64 << 10;  ///< a tensor with fewer bytes is written by one rank
constexpr int64_t kShortRun = 32 << 10;    ///< shorter runs of bytes are slow on disks

/// The boxes of a tensor that the ranks write: each element is in exactly one box. [6, 4] in blocks of rows {4, 2} over
/// 2 ranks has the boxes [0:4, :] and [4:6, :]. A tensor without dims counts as one of shape {1}, so that a
/// box can be empty.
struct FileShares {
  std::vector<int64_t> shape;
  std::vector<Box> boxes;  ///< by rank of the mesh
  bool moves = false;      ///< true if a box is not within its rank's block, so that elements must be sent
};

/// Assigns the boxes of one tensor. Ranks with equal blocks divide the block's rows; a small block goes to the rank
/// with the fewest bytes so far. If a block would be many short runs in the file (an inner dim is sharded), the boxes
/// are rows of the whole tensor instead, and elements are sent. `bytes`: the bytes assigned to each rank so far, to
/// which those of this tensor are added. Partial counts as Replicate.
FileShares share_out(const ShardSpec& spec, int64_t element_bytes, std::vector<int64_t>& bytes,
                     int64_t short_run = kShortRun);

/// Divides a box along its first dims into pieces of at most `limit` bytes, or of one element, in row-major order.
std::vector<Box> pieces_of(const Box& box, int64_t element_bytes, int64_t limit);

/// Calls visit(offset, length) for each contiguous run of bytes of a box in a row-major tensor of `shape`, in the order
/// of the box's elements. count_runs returns the number of these runs.
void for_each_run(const std::vector<int64_t>& shape, const Box& box, int64_t element_bytes,
                  const std::function<void(int64_t offset, int64_t length)>& visit);
int64_t count_runs(const std::vector<int64_t>& shape, const Box& box);

}  // namespace moonhalo::io
