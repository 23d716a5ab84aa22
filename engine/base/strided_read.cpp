// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/strided_read.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorGeometry.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "moonhalo/engine/base/block_memory.h"

namespace moonhalo {
namespace {

// Reads the target's elements, which are in the storage from `first` on with these strides, the largest first. `run`:
// memory for runs with gaps, which all have the same size.
void read_runs(at::IntArrayRef strides, int64_t first, const at::Tensor& target, at::Tensor& run, ReadBytes read) {
  const bool dense = at::geometry_is_contiguous(target.sizes(), strides);
  if (!dense && strides.size() > 1) {
    for (int64_t i = 0; i < target.size(0); ++i)
      read_runs(strides.slice(1), first + i * strides[0], target.select(0, i), run, read);
    return;
  }
  const int64_t width = target.element_size();
  const auto bytes = static_cast<int64_t>(at::detail::computeStorageNbytes(target.sizes(), strides, width));
  if (dense && target.is_contiguous()) {
    read(first * width, bytes, target.mutable_data_ptr());
    return;
  }
  if (!run.defined()) run = empty_block({bytes / width}, target.options());
  read(first * width, bytes, run.mutable_data_ptr());
  target.copy_(run.as_strided(target.sizes(), strides));
}

}  // namespace

at::Tensor read_strided_box(const Box& box, at::IntArrayRef strides, int64_t offset, at::ScalarType dtype,
                            ReadBytes read) {
  const at::Tensor block = empty_block(box.shape(), at::TensorOptions(dtype));
  if (block.numel() == 0) return block;
  std::vector<int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) { return strides[a] > strides[b]; });
  std::vector<int64_t> ordered;
  int64_t first = offset;
  for (const int64_t dim : order) {
    ordered.push_back(strides[dim]);
    first += box[dim].begin * strides[dim];
  }
  at::Tensor run;
  read_runs(ordered, first, block.permute(order), run, read);
  return block;
}

}  // namespace moonhalo
