// SPDX-License-Identifier: Apache-2.0
#include "engine/view_trace.h"

#include <c10/util/Exception.h>

#include "engine/versions.h"

namespace moonhalo {

void ViewTrace::read(const at::Tensor& tensor) {
  base_ = tensor;
  const ShardTensorImpl& impl = *shard_impl(tensor);
  if (!impl.local().has_storage()) return;
  storage_ = impl.local().storage();
  if (impl.copied_view()) copied_from_ = impl.copied_from;
  version_ = version_of(impl);
}

void ViewTrace::mark(ShardTensorImpl& result, bool copies) const {
  if (base_.defined()) result.take_mode_of(*shard_impl(base_));
  if (!storage_) return;
  const bool shares = result.local().has_storage() && result.local().storage().is_alias_of(storage_);
  if (shares) {
    share_versions(shard_impl(base_)->local(), result.local());
    shard_impl(base_)->share_block(result);
  }
  if (!copied_from_ && shares && !copies) return;
  result.copied_from = copied_from_ ? copied_from_ : storage_.getWeakStorageImpl();
  result.copied_at = version_;
}

void refuse_copied_view(const ShardTensorImpl& impl, bool written, const c10::OperatorHandle& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(!written, op.operator_name().name,
                              ": this view of a ShardTensor had to be copied, so writing to it in place would be lost",
                              "\n  have  ", impl.spec()->to_string(), "\n  fix   clone() it first, or write to the tensor it was made from");
  TORCH_CHECK_NOT_IMPLEMENTED(version_of(impl) <= impl.copied_at, op.operator_name().name,
                              ": this view of a ShardTensor had to be copied, and what it was made from has been ",
                              "written in place since\n  have  ", impl.spec()->to_string(),
                              "\n  fix   make the view again after writing");
}

}  // namespace moonhalo
