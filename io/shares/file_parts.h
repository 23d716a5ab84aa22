// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "moonhalo/io/shares/file_shares.h"

namespace moonhalo::io {

/// One tensor of a file that all ranks write together, whole and row-major: this rank's block and its share.
struct FilePart {
  size_t file = 0;
  int64_t offset = 0;  ///< of the tensor in its file
  int64_t element_bytes = 0;
  SpecPtr spec = {};  ///< null: a plain tensor, which this rank writes alone
  FileShares shares = {};
  at::Tensor block = {};
  Box owned = {};  ///< the elements of the block
  Box box = {};    ///< the elements that this rank writes
};

/// Makes the part of a ShardTensor without Partial; share_out assigns the boxes.
FilePart share_block(const SpecPtr& spec, const at::Tensor& block, std::vector<int64_t>& bytes,
                     int64_t short_run = kShortRun);

/// Calls visit(part, box, data) for each piece that this rank writes; `data` is contiguous and on the CPU. All ranks
/// pass the same parts. Collective if elements are sent (FileShares::moves): `visit` must not throw then, because other
/// ranks wait.
using VisitPiece = std::function<void(const FilePart& part, const Box& box, const at::Tensor& data)>;
void for_each_piece(const std::vector<FilePart>& parts, const VisitPiece& visit);

}  // namespace moonhalo::io
