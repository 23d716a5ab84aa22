// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/memory_order.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <numeric>

namespace moonhalo {

at::DimVector dense_strides(at::IntArrayRef sizes, at::IntArrayRef like) {
  at::DimVector order(sizes.size()), strides(sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return like[a] > like[b]; });
  int64_t next = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = next;
    next *= std::max<int64_t>(sizes[*d], 1);
  }
  return strides;
}

bool has_layout(at::IntArrayRef sizes, at::IntArrayRef strides, at::IntArrayRef like) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0 || (sizes[d] > 1 && like[d] == 0)) return true;
  }
  const at::DimVector dense = dense_strides(sizes, like);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != dense[d]) return false;
  }
  return true;
}

at::Tensor laid_as(const at::Tensor& block, at::IntArrayRef like) {
  if (has_layout(block, like)) return block;
  return at::empty_strided(block.sizes(), dense_strides(block.sizes(), like), block.options()).copy_(block);
}

}  // namespace moonhalo
