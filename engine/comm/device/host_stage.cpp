// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/host_stage.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace moonhalo {
namespace {

using DeviceImpl = c10::impl::VirtualGuardImpl;
using Tensors = std::vector<at::Tensor>;

// One past the last of the tensors from `first` on that are contiguous in one memory.
size_t end_of_run(const Tensors& tensors, size_t first) {
  size_t end = first + 1;
  const auto follows = [&](const at::Tensor& before, const at::Tensor& next) {
    return next.storage().is_alias_of(before.storage()) && next.scalar_type() == before.scalar_type() &&
           next.storage_offset() == before.storage_offset() + before.numel();
  };
  while (end < tensors.size() && follows(tensors[end - 1], tensors[end])) ++end;
  return end;
}

// Tensors [first, end), which are a run, as one.
at::Tensor joined(const Tensors& tensors, size_t first, size_t end) {
  int64_t numel = 0;
  for (size_t i = first; i < end; ++i) numel += tensors[i].numel();
  return tensors[first].detach().as_strided({numel}, {1}, tensors[first].storage_offset());
}

// Each run of tensors is copied to its places, which are one too.
void copy_runs(const Tensors& from, const Tensors& to) {
  for (size_t first = 0, end = 0; first < from.size(); first = end) {
    end = end_of_run(from, first);
    joined(to, first, end).copy_(joined(from, first, end), /*non_blocking=*/true);
  }
}

}  // namespace

HostStage::HostStage(c10::Device device)
    : stream_(DeviceImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

c10::Stream HostStage::compute_stream() const { return DeviceImpl(device().type()).getStream(device()); }

c10::Event HostStage::mark() const {
  c10::Event computed(device().type());
  computed.record(compute_stream());
  return computed;
}

Tensors HostStage::places_for(const Tensors& tensors) {
  Tensors places;
  for (size_t first = 0, end = 0; first < tensors.size(); first = end) {
    end = end_of_run(tensors, first);
    int64_t numel = 0;
    for (size_t i = first; i < end; ++i) numel += tensors[i].numel();
    const auto options = tensors[first].options().device(c10::kCPU).pinned_memory(true).requires_grad(false);
    const at::Tensor all = at::empty({numel}, options);
    int64_t at = 0;
    for (size_t i = first; i < end; ++i) {
      places.push_back(all.narrow(0, at, tensors[i].numel()).view(tensors[i].sizes()));
      at += tensors[i].numel();
    }
  }
  return places;
}

Tensors HostStage::to_host(const Tensors& tensors, const c10::Event& ready) const {
  ready.block(stream_);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard beside(stream_);
  const Tensors places = places_for(tensors);
  copy_runs(tensors, places);
  c10::Event copied(device().type());
  copied.record(stream_);
  copied.synchronize();
  return places;
}

void HostStage::to_device(const Tensors& places, const Tensors& tensors, const c10::Event& ready) const {
  ready.block(stream_);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::StreamGuard beside(stream_);
    copy_runs(places, tensors);
  }
  c10::Event copied(device().type());
  copied.record(stream_);
  copied.block(compute_stream());
}

}  // namespace moonhalo
