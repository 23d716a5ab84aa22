// SPDX-License-Identifier: Apache-2.0
// Making ShardTensors and leaving them, differentiably.
#include "moonhalo/engine/tensor/shard_tensor.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/lazy_bits.h"
#include "moonhalo/engine/base/versions.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/exchange/redistribution_cache.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/tensor/tensor_creation.h"
#include "moonhalo/engine/tensor/view_copies.h"

namespace moonhalo {
namespace {

// While blocks move from one spec to another.
class Moving {
 public:
  Moving(const at::Tensor& tensor, const SpecPtr& to)
      : text_([origin = shard_impl(tensor)->origin, from = spec(tensor), to] {
          return from->to_string() + " -> " + to->to_string() + CallLog::of_this_thread().made_by(origin);
        }),
        scope_(combine_fingerprint(combine_fingerprint(fingerprint_of(*spec(tensor)), fingerprint_of(*to)),
                                   CallLog::of_this_thread().shared_origin(shard_impl(tensor)->origin)),
               "redistribute", text_) {}

 private:
  std::function<std::string()> text_;
  CallScope scope_;
};

void check_target(const ShardSpec& from, const ShardSpec& to) {
  TORCH_CHECK_VALUE(from.global_shape() == to.global_shape(), "redistribute: the target is of another shape\n  have  ",
                    from.to_string(), " and ", to.to_string(),
                    "\n  fix   make the target spec for this tensor's shape");
  if (from.mesh() == to.mesh() || to.mesh()->group().is_fake()) return;
  const c10::Device here = device_of(*from.mesh()), there = device_of(*to.mesh());
  // "cuda" and "cuda:0" are one device on the first rank, and two on the next, so the names count.
  const bool same_name = from.mesh()->device_type() == to.mesh()->device_type() || from.mesh()->size() == 1;
  TORCH_CHECK_NOT_IMPLEMENTED(
      same_name && here == there, "redistribute: the meshes are of different devices\n  have  ", from.to_string(),
      " on ", here, " and ", to.to_string(), " on ", there,
      "\n  fix   distribute_tensor(full_tensor(x), mesh, placements), or from_local of blocks that were moved");
}

// A redistributed tensor, which is not a view of the one with the block `source`.
at::Tensor wrap_moved(at::Tensor local, const at::Tensor& source, const SpecPtr& to) {
  return wrap_new(local.is_alias_of(source) ? copied_block(local) : std::move(local), to);
}

void connect_moved(const at::Tensor& tensor, const at::Tensor& result) {
  attach_backward(
      tensor, result,
      [from = without_partial(spec(tensor))](const at::Tensor& grad) { return gradient_of(grad, from); },
      [&](const at::Tensor& tangent) { return redistribute(tangent, spec(result)); });
}

}  // namespace

at::Tensor redistribute(const at::Tensor& tensor, const SpecPtr& to) {
  const SpecPtr from = spec(tensor);
  if (from == to) return tensor;
  check_target(*from, *to);
  const SuspendCapture inside;
  at::Tensor result;
  {
    const BelowAutograd guard;
    const Moving moving(tensor, to);
    const at::Tensor source = fresh_block(tensor, "redistribute");
    result = wrap_moved(cached_redistribution(from, to)->apply(source), source, to);
    shard_impl(result)->origin = shard_impl(tensor)->origin;
  }
  connect_moved(tensor, result);
  return result;
}

at::Tensor redistribute(const at::Tensor& tensor, const std::vector<Placement>& placements) {
  return redistribute(tensor, spec(tensor)->mesh(), placements);
}

at::Tensor redistribute(const at::Tensor& tensor, const MeshPtr& mesh, const std::vector<Placement>& placements) {
  check_placements(mesh, placements, "redistribute");
  return redistribute(tensor, make_spec(mesh, spec(tensor)->global_shape(), placements));
}

struct PendingTensor::State {
  at::Tensor tensor, source;
  SpecPtr to;
  std::optional<Redistribution::Pending> block;
  at::Tensor result;
  uint32_t version = 0;
  bool records = false;
};

PendingTensor redistribute_async(const at::Tensor& tensor, const SpecPtr& to) {
  const SuspendCapture inside;
  const SpecPtr from = spec(tensor);
  check_target(*from, *to);
  PendingTensor pending;
  pending.state_ = std::make_shared<PendingTensor::State>();
  PendingTensor::State& state = *pending.state_;
  if (from == to) {
    state.result = tensor;
    return pending;
  }
  const BelowAutograd guard;
  const Moving moving(tensor, to);
  state.tensor = tensor;
  state.source = fresh_block(tensor, "redistribute_async");
  state.to = to;
  state.version = version_of(*tensor.unsafeGetTensorImpl());
  state.records = c10::GradMode::is_enabled();
  state.block = cached_redistribution(from, to)->start(state.source);
  return pending;
}

at::Tensor PendingTensor::wait() {
  const SuspendCapture inside;
  TORCH_CHECK_VALUE(state_ != nullptr,
                    "PendingTensor: nothing was started\n  fix   use the result of redistribute_async");
  State& state = *state_;
  if (state.result.defined()) return state.result;
  {
    const BelowAutograd guard;
    at::Tensor local = state.block->finish();
    TORCH_CHECK_VALUE(version_of(*state.tensor.unsafeGetTensorImpl()) == state.version,
                      "redistribute_async: the tensor was written in place before wait()\n  have  ",
                      spec(state.tensor)->to_string(), "\n  fix   wait first, or write to a clone()");
    state.result = wrap_moved(std::move(local), state.source, state.to);
    shard_impl(state.result)->origin = shard_impl(state.tensor)->origin;
  }
  const c10::AutoGradMode as_at_the_start(state.records);
  connect_moved(state.tensor, state.result);
  state.tensor.reset();
  state.source.reset();
  state.block.reset();
  return state.result;
}

PendingTensor redistribute_async(const at::Tensor& tensor, const std::vector<Placement>& placements) {
  return redistribute_async(tensor, spec(tensor)->mesh(), placements);
}

PendingTensor redistribute_async(const at::Tensor& tensor, const MeshPtr& mesh,
                                 const std::vector<Placement>& placements) {
  check_placements(mesh, placements, "redistribute");
  return redistribute_async(tensor, make_spec(mesh, spec(tensor)->global_shape(), placements));
}

at::Tensor full_tensor(const at::Tensor& tensor) {
  const SpecPtr from = spec(tensor);
  return to_local(redistribute(tensor, replicated(from->mesh(), from->global_shape())));
}

at::Tensor to_local(const at::Tensor& tensor) {
  const SpecPtr from = spec(tensor);
  const at::Tensor local = counted_alias(fresh_block(tensor, "to_local"));
  attach_backward(
      tensor, local, [target = without_partial(from)](const at::Tensor& grad) { return from_local(grad, target); },
      [&](const at::Tensor& tangent) { return to_local(redistribute(tangent, from)); });
  return local;
}

}  // namespace moonhalo
