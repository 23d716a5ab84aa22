// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/fake_key.h"

#include <ATen/ATen.h>

namespace moonhalo {

void forget_values(const at::Tensor& tensor) {
  at::Tensor fake = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(tensor.storage()),
                                                             tensor.key_set().add(kFakeKey), tensor.dtype());
  fake.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  fake.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(fake.getIntrusivePtr());
}

}  // namespace moonhalo
