// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// A cut dim that consists of n equal parts, one behind the other: queries, keys and values of attention, the gates of
/// a cell. Its blocks are runs of rows of all parts; here every part is cut in the same way instead. Of 3 parts of 4
/// rows over 2 ranks:
///
///     packed   |q q q q k k|k k v v v v|       parts   |q q|q q|   |k k|k k|   |v v|v v|
///     rank      0           1                  rank     0   1       0   1       0   1
///
/// Either block is made from the other in one exchange, in which every row moves at most once.
class PackedDim {
 public:
  /// `packed` cuts dim `dim`, of n * width rows. `parts` has the two dims n, not cut, and width in its place; all other
  /// dims are the same.
  PackedDim(SpecPtr packed, SpecPtr parts, int64_t dim);
  /// Returns this rank's block of `parts`, from its block of `packed`. Collective over the mesh.
  at::Tensor unpack(const at::Tensor& packed) const;
  /// The inverse of unpack. Collective over the mesh.
  at::Tensor pack(const at::Tensor& parts) const;

 private:
  SpecPtr packed_, parts_;
  int64_t dim_;
  std::vector<std::shared_ptr<const IntervalMap>> to_parts_, to_packed_;  // by part; begin, middle and end of a block
};

/// Returns `spec` with dim `dim` replaced by the dims n, not cut, and width, cut in blocks of `sizes` rows over the
/// mesh dims that cut `dim`.
SpecPtr with_parts(const SpecPtr& spec, int64_t dim, int64_t n, std::vector<int64_t> sizes);

/// True if some of `blocks` ranks would have far more of `rows` rows than others.
inline bool divides_badly(int64_t rows, int64_t blocks) {
  return 4 * ((rows + blocks - 1) / blocks) * blocks > 5 * rows;
}

}  // namespace moonhalo
