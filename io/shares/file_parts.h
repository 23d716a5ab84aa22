// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "moonhalo/io/shares/file_shares.h"

namespace moonhalo::io {

/// A tensor that all ranks write whole and row-major into a file, as this rank has it.
struct FilePart {
  size_t file = 0;
  int64_t offset = 0;  ///< of the tensor in its file
  int64_t element_bytes = 0;
  SpecPtr spec = {};  ///< null: this rank's own
  FileShares shares = {};
  at::Tensor block = {};
  Box owned = {};  ///< the block
  Box box = {};    ///< what this rank writes
};

/// The block of a ShardTensor without Partial, shared out as share_out says.
FilePart share_block(const SpecPtr& spec, const at::Tensor& block, std::vector<int64_t>& bytes,
                     int64_t short_run = kShortRun);

/// Calls visit(part, box, data) for pieces of what this rank writes, `data` on the CPU and contiguous. Collective
/// where elements are sent (FileShares::moves), so `visit` must not throw; every rank gives the same parts.
using VisitPiece = std::function<void(const FilePart& part, const Box& box, const at::Tensor& data)>;
void for_each_piece(const std::vector<FilePart>& parts, const VisitPiece& visit);

}  // namespace moonhalo::io
