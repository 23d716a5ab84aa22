// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "moonhalo/engine/base/box.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/io/base/positioned_file.h"

namespace moonhalo::io {

/// Bytes that a rank reads before it puts them into shared blocks: sized to stay in a core's cache.
constexpr int64_t kPieceBytes = 256 << 10;

/// The blocks of ranks that are threads of one process, for each of them to write into. A block stays alive as long as
/// any rank may write into it, also where its owner has left because of an error.
class SharedBlocks {
 public:
  /// True if the ranks of a group can do so, or those that a dry run stands for. The same answer on every rank.
  static bool possible(const Communicator& group);
  /// Shares these blocks of this rank, contiguous ones of the CPU, to the others; as many on every rank.
  /// Collective over the group. In a dry run there are no blocks of other ranks, and nothing is put into them.
  SharedBlocks(Communicator& group, std::vector<at::Tensor> mine);
  const at::Tensor& block(int64_t rank, size_t i) const { return blocks_[static_cast<size_t>(rank)][i]; }
  /// Copies the elements `rows` of an array, dense at `data`, into block `i` of every rank that holds any of them;
  /// `box_of` says which elements a rank's block has. They are seen after finish_stream() here and the next collective
  /// call.
  void put(size_t i, const void* data, const Box& rows, const std::function<Box(int64_t rank)>& box_of) const;
  /// Where the elements `rows` of an array of `shape` belong in the blocks `i`, in the order of the array: the
  /// system can read them there without a copy. None unless they are one behind the other in the array, each is
  /// in one rank's block, and blocks have long runs of them.
  std::vector<ReadInto> places(size_t i, const std::vector<int64_t>& shape, const Box& rows,
                               const std::function<Box(int64_t rank)>& box_of) const;
  /// Drops the blocks of others, into which this rank writes no more. Before the call that ends the writes of all, so
  /// that the owner of a block frees it.
  void release() { blocks_.clear(); }

 private:
  class SharedMemory {
   public:
    explicit SharedMemory(std::vector<at::Tensor> blocks);
    SharedMemory(const SharedMemory&) = delete;
    ~SharedMemory();
    const int64_t number;
  };
  SharedMemory shared_memory_;
  std::vector<std::vector<at::Tensor>> blocks_;  // by rank
  size_t bytes_ = 0;                             // of all
};

}  // namespace moonhalo::io
