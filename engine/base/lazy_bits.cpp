// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/lazy_bits.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Layout.h>
#include <c10/util/Exception.h>

namespace moonhalo {

at::Tensor materialize_lazy_bits(const at::Tensor& tensor) {
  if (!is_lazy(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.clone();
}

void refuse_layout(at::Layout layout, at::IntArrayRef shape, const char* operation) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, operation, ": a tensor of layout ", layout,
                              " has no blocks and cannot be combined with ShardTensors\n  have  shape ", shape,
                              ", layout ", layout,
                              "\n  fix   make it dense first (to_dense()), or leave the mesh: full_tensor(x)");
}

}  // namespace moonhalo
