// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Global row numbers seen from one rank's block.
struct OwnedRows {
  at::Tensor index;  ///< rows of the block; 0 where the row is another rank's
  at::Tensor valid;  ///< bool, of the same shape: the row is in this block
  /// The entries that are valid, as a 1-D list.
  at::Tensor positions() const { return valid.flatten().nonzero().select(1, 0); }
};

/// IndexError unless all of `index` are rows of `dim` of a tensor of spec `spec`. Negative ones count from the end
/// where `wrap` says so. Not collective.
void check_rows(const at::Tensor& index, const ShardSpec& spec, int64_t dim, bool wrap, const char* op);

/// The same for the lowest and the highest row of an index.
void check_ends(int64_t low, int64_t high, const ShardSpec& spec, int64_t dim, bool wrap, const char* op);

/// The part of `index` (global rows of `dim` of a tensor of spec `spec`, any shape, replicated) that this rank's block
/// holds. Negative rows count from the end where `wrap` says so. IndexError for rows that do not exist. Not collective.
OwnedRows owned_rows(const at::Tensor& index, const ShardSpec& spec, int64_t dim, bool wrap, const char* op);

}  // namespace moonhalo
