// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {

/// Counts how often operators on ShardTensors wrote the memory of a block. All ranks count the same.
class WriteCount;
/// Begins to count, as long as the result is held.
std::shared_ptr<const WriteCount> count_writes(const at::Tensor& block);
uint64_t writes_so_far(const WriteCount& count);

/// A block that a view operator copied where it should have shared memory: a row that another rank owns, a cut that had
/// to move, or a narrowed block with gaps. It is kept equal to its original as a cache is:
///
///     x [9, 7] cut 5 + 4      row = x[3]                 every rank gets a copy of the row
///     row:mul_(2)             the copy is written, then the row of x by the rank that owns it
///     x:add_(1)               the copy is old: the next reader of `row` fetches it again
///
/// Shared by all ShardTensors that have this block. It holds its original, as a view holds its memory: whether there is
/// something to write to is then known without asking who let go of what, which ranks may do at different times.
class CopiedMemory {
 public:
  /// Returns what the copy should hold, from the original's block.
  using Read = std::function<at::Tensor(const at::Tensor& original)>;
  /// Puts what the copy holds into the original's block.
  using Write = std::function<void(const at::Tensor& copy, const at::Tensor& original)>;

  /// Blocks of this rank. Without `read` and `write` calls that would need them are refused. `source`:
  /// what the original is a copy of, or null.
  CopiedMemory(at::Tensor original, at::Tensor copy, Read read, Write write, std::shared_ptr<CopiedMemory> source);

  /// Before the copy is read or written: copies again if the original was written since. Collective if it moves;
  /// all ranks decide the same. NotImplementedError where `read` or `write` is missing.
  void refresh(const ShardTensorImpl& reader, const std::string& op);
  /// NotImplementedError unless what is written to the copy can reach the original.
  void check_writable(const ShardTensorImpl& writer, const std::string& op) const;
  /// After the copy was written, to the original and on to what that is a copy of. Collective like refresh.
  void write_through();

 private:
  at::Tensor original_, copy_;
  Read read_;
  Write write_;
  std::shared_ptr<CopiedMemory> source_;
  std::shared_ptr<const WriteCount> count_;  // of the original
  uint64_t seen_ = 0;                        // when copy and original were equal
};

/// Null where the tensor's block is its own.
const std::shared_ptr<CopiedMemory>& copied_memory(ShardTensorImpl& impl);
/// Makes a ShardTensor's block ready to be read, and returns it; `op` is for messages.
const at::Tensor& fresh_block(const at::Tensor& tensor, const char* op);

/// True if writes to blocks are of interest to any copy or view.
bool writes_are_counted();
/// An operator has written this block.
void block_was_written(const at::Tensor& block);

/// For run functions of view operators that cannot view the block that they are given: `copy` has its shape and is
/// viewed instead. Nothing happens in operators that make no views.
void mark_copied(const at::Tensor& copy);
/// Dims are merged: of a plain tensor with gaps, that would be no view but a copy (reshape), which is not written
/// through.
/// `gaps`: this rank's block has some.
void mark_merged(bool gaps);
/// Like mark_copied, of the input's own block, with its own `read` and `write`.
void mark_copied(const at::Tensor& copy, CopiedMemory::Read read, CopiedMemory::Write write);

}  // namespace moonhalo
