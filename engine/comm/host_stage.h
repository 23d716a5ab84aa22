// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <utility>
#include <vector>

namespace moonhalo {

/// Carries the memory of one device to page-locked memory of the host and back, on a stream beside that of the
/// computation. With LibTorch's streams and events alone, so for every kind of device that has them.
class HostStage {
 public:
  explicit HostStage(c10::Device device);

  c10::Device device() const { return stream_.device(); }

  /// Marks the place that the current stream has come to, for a later to_device.
  c10::Event mark() const;
  /// Copies on the host of contiguous tensors, as the current stream has computed them. The host waits until they are
  /// there, once for all; then the tensors may change.
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors) const;
  /// Page-locked memory for a tensor's data.
  static at::Tensor place_for(const at::Tensor& tensor);
  /// From the host to the device, for (from, to) pairs, after `ready`. What comes later on the current stream waits for
  /// that; the host does not.
  void to_device(const std::vector<std::pair<at::Tensor, at::Tensor>>& copies, const c10::Event& ready) const;

 private:
  c10::Stream compute_stream() const;

  c10::Stream stream_;
};

}  // namespace moonhalo
