// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/local_rows.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/base/fake_key.h"

namespace moonhalo {

void check_rows(const at::Tensor& index, const ShardSpec& spec, int64_t dim, bool wrap, const char* op) {
  if (index.numel() > 0 && !is_fake(index))
    check_ends(index.min().item<int64_t>(), index.max().item<int64_t>(), spec, dim, wrap, op);
}

void check_ends(int64_t low, int64_t high, const ShardSpec& spec, int64_t dim, bool wrap, const char* op) {
  const int64_t extent = spec.global_shape()[dim];
  TORCH_CHECK_INDEX(low >= (wrap ? -extent : 0) && high < extent, op, ": index ", high < extent ? low : high,
                    " is out of bounds for dimension ", dim, " with size ", extent);
}

OwnedRows owned_rows(const at::Tensor& index, const ShardSpec& spec, int64_t dim, bool wrap, const char* op) {
  check_rows(index, spec, dim, wrap, op);
  const int64_t extent = spec.global_shape()[dim], begin = spec.offsets()[dim], rows = spec.local_shape()[dim];
  at::Tensor row = index.to(at::kLong);
  if (wrap) row = at::where(row.lt(0), row + extent, row);
  row = row - begin;
  at::Tensor valid = row.ge(0).logical_and(row.lt(rows));
  return {row.masked_fill(valid.logical_not(), 0), std::move(valid)};
}

}  // namespace moonhalo
