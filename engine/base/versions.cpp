// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/versions.h"

namespace moonhalo {

uint32_t version_of(const c10::TensorImpl& impl) {
  return impl.version_counter().enabled() ? impl.version_counter().current_version() : 0;
}

void share_versions(const at::Tensor& block, const at::Tensor& alias) {
  const c10::TensorImpl& counts = *block.unsafeGetTensorImpl();
  c10::TensorImpl& impl = *alias.unsafeGetTensorImpl();
  if (&counts != &impl && counts.version_counter().enabled() && !impl.is_inference())
    impl.set_version_counter(counts.version_counter());
}

at::Tensor counted_alias(const at::Tensor& block) {
  const c10::TensorImpl& impl = *block.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/true));
}

}  // namespace moonhalo
