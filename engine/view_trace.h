// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>

#include "engine/shard_tensor.h"

namespace moonhalo {

/// A view must share memory with what it was made from; it may be a copy by plan, of a copy, or because a narrowed block
/// has gaps. Lives as long as one call of a view operator: is shown the tensors that it reads and marks its results.
class ViewTrace {
 public:
  /// `tensor` is a ShardTensor, resolved if it was a Partial.
  void read(const at::Tensor& tensor);
  /// `copies`: the plan says so (Plan::copies_view).
  void mark(ShardTensorImpl& result, bool copies) const;

 private:
  at::Tensor base_;
  c10::Storage storage_;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> copied_from_;
  uint32_t version_ = 0;
};

/// NotImplementedError for a view that was copied: when it is written, and when what it was made from has been written since.
void refuse_copied_view(const ShardTensorImpl& impl, bool written, const c10::OperatorHandle& op);

}  // namespace moonhalo
