// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/tensor/view_tracking.h"

#include <ATen/Functions.h>
#include <ATen/TensorUtils.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/exchange/redistribution_cache.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/shard_tensor_meta.h"
#include "moonhalo/engine/tensor/tensor_context.h"

namespace moonhalo {
namespace {

at::Tensor as_it_is(const at::Tensor& original) { return original; }
void put_back(const at::Tensor& copy, const at::Tensor& original) { original.copy_(copy); }

// Ranks whose block is thin or empty see no gaps where others do.
bool on_any_rank(const at::Tensor& tensor, bool here) {
  const ScopedStatsPause check;
  at::Tensor any = at::full({}, here ? 1 : 0, at::kInt);
  shard_impl(tensor)->spec()->mesh()->group().all_reduce(any, ReduceOp::kMax);
  return any.item<int>() != 0;
}

// True if one plain tensor could be viewed as `shape`, by its strides. Where these are not known, gaps in any block
// tell. The same on all ranks.
bool is_view_of_plain(const at::Tensor& tensor, at::IntArrayRef shape, bool gaps) {
  if (!at::detail::computeStride(tensor.sizes(), tensor.strides(), shape.vec())) return false;
  const ShardTensorMeta* notes = notes_of(*shard_impl(tensor));
  return notes == nullptr || !notes->any_order || !on_any_rank(tensor, gaps || notes->has_new_layout);
}

}  // namespace

ViewTrace::ViewTrace() : current_(tensor_context->view_trace, this) {}

void ViewTrace::read(const at::Tensor& tensor, const at::Tensor& moved, const SpecPtr& required) {
  base_ = tensor;
  const ShardTensorImpl& impl = *shard_impl(tensor);
  block_ = impl.local();
  if (!moved.defined()) return;
  copy_ = moved;
  const SpecPtr& from = impl.spec();
  read_ = [from, required](const at::Tensor& original) {
    return cached_redistribution(from, required)->apply(original);
  };
  write_ = [from, required](const at::Tensor& copy, const at::Tensor& original) {
    original.copy_(cached_redistribution(required, from)->apply(copy));
  };
}

void ViewTrace::mark(ShardTensorImpl& result, bool copies) {
  if (!base_.defined()) return;
  ShardTensorImpl& base = *shard_impl(base_);
  result.take_mode_of(base);
  if (!block_.has_storage() || !result.local().has_storage()) return;
  const auto& source = copied_memory(base);
  const bool writable = !merged_ || is_view_of_plain(base_, result.sizes(), gaps_);
  if (writable && !copies && !copy_.defined() && result.local().is_alias_of(block_)) {
    share_versions(block_, result.local());
    base.share_block(result);
    if (source) make_notes(result).copied = source;
    return;
  }
  if (!copied_) {
    const bool known = writable && copy_.defined() && result.local().is_alias_of(copy_) && !base.spec()->has_partial();
    copied_ = known ? std::make_shared<CopiedMemory>(block_, copy_, std::move(read_), std::move(write_), source)
                    : std::make_shared<CopiedMemory>(block_, result.local(), nullptr, nullptr, source);
  }
  make_notes(result).copied = copied_;
}

void mark_copied(const at::Tensor& copy) {
  if (tensor_context->view_trace == nullptr) return;
  ViewTrace& trace = *tensor_context->view_trace;
  if (!trace.copy_.defined()) {
    trace.read_ = &as_it_is;
    trace.write_ = &put_back;
  }
  trace.copy_ = copy;
}

void mark_merged(bool gaps) {
  ViewTrace* const trace = tensor_context->view_trace;
  if (trace == nullptr) return;
  trace->merged_ = true;
  trace->gaps_ = gaps;
}

void mark_copied(const at::Tensor& copy, CopiedMemory::Read read, CopiedMemory::Write write) {
  if (tensor_context->view_trace == nullptr) return;
  ViewTrace& trace = *tensor_context->view_trace;
  trace.copy_ = copy;
  trace.read_ = std::move(read);
  trace.write_ = std::move(write);
}

void Sharing::prepare(const at::Tensor& tensor, bool writes, const c10::OperatorHandle& op) {
  ShardTensorImpl& impl = *shard_impl(tensor);
  const auto& copied = copied_memory(impl);
  if (copied && writes) copied->check_writable(impl, op.operator_name().name);
  if (copied) copied->refresh(impl, op.operator_name().name);
  if (writes) written.push_back(tensor);
}

void Sharing::report_writes() {
  for (const at::Tensor& tensor : written) {
    ShardTensorImpl& impl = *shard_impl(tensor);
    block_was_written(impl.local());
    if (const auto& copied = copied_memory(impl)) copied->write_through();
  }
}

}  // namespace moonhalo
