// SPDX-License-Identifier: Apache-2.0
#include "engine/lazy_bits.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace moonhalo {

at::Tensor carried_out(const at::Tensor& tensor) {
  if (!is_lazy(tensor)) return tensor;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return tensor.clone();
}

}  // namespace moonhalo
