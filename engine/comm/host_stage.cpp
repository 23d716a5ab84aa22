// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/host_stage.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace moonhalo {
namespace {

using DeviceImpl = c10::impl::VirtualGuardImpl;

}  // namespace

HostStage::HostStage(c10::Device device)
    : stream_(DeviceImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true)) {}

c10::Stream HostStage::compute_stream() const { return DeviceImpl(device().type()).getStream(device()); }

c10::Event HostStage::mark() const {
  c10::Event computed(device().type());
  computed.record(compute_stream());
  return computed;
}

at::Tensor HostStage::place_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(c10::kCPU).pinned_memory(true).requires_grad(false));
}

std::vector<at::Tensor> HostStage::to_host(const std::vector<at::Tensor>& tensors) const {
  mark().block(stream_);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::StreamGuard beside(stream_);
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors)
    copies.push_back(place_for(tensor).copy_(tensor.detach(), /*non_blocking=*/true));
  c10::Event copied(device().type());
  copied.record(stream_);
  copied.synchronize();
  return copies;
}

void HostStage::to_device(const std::vector<std::pair<at::Tensor, at::Tensor>>& copies, const c10::Event& ready) const {
  ready.block(stream_);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::StreamGuard beside(stream_);
    for (const auto& [from, to] : copies) to.detach().copy_(from, /*non_blocking=*/true);
  }
  c10::Event copied(device().type());
  copied.record(stream_);
  copied.block(compute_stream());
}

}  // namespace moonhalo
