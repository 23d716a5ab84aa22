// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {

/// A view must share memory with what it was made from, or know that it is a copy (view_copies.h). Lives as long as
/// one call of a view operator: receives what it reads and its copies (mark_copied), and marks its results.
class ViewTrace {
 public:
  ViewTrace();

  /// `tensor` is a ShardTensor, summed up if it was a Partial that is not shared; the call is given `moved`, cut
  /// as `required` says, or the tensor's own block if that is undefined.
  void read(const at::Tensor& tensor, const at::Tensor& moved, const SpecPtr& required);
  /// `copies`: the plan says so (Plan::breaks_alias).
  void mark(ShardTensorImpl& result, bool copies);

 private:
  friend void mark_merged(bool gaps);
  friend void mark_copied(const at::Tensor& copy);
  friend void mark_copied(const at::Tensor& copy, CopiedMemory::Read read, CopiedMemory::Write write);

  ScopedValue<ViewTrace*> current_;
  at::Tensor base_, block_, copy_;
  CopiedMemory::Read read_;
  CopiedMemory::Write write_;
  std::shared_ptr<CopiedMemory> copied_;
  bool merged_ = false, gaps_ = false;
};

/// Tracks for one call the memory that tensors share.
struct Sharing {
  std::optional<ViewTrace> views;  ///< of an operator that makes views
  c10::SmallVector<at::Tensor, 2> written;

  /// For a ShardTensor that has notes, or is to be written while writes are counted: a block that is a copy is read
  /// again if it is old; what will be written is remembered.
  void prepare(const at::Tensor& tensor, bool writes, const c10::OperatorHandle& op);
  /// Once the operator has run: other tensors are notified of what it wrote, originals of copies get it.
  void after_writing() {
    if (!written.empty()) [[unlikely]]
      report_writes();
  }

 private:
  void report_writes();
};

}  // namespace moonhalo
