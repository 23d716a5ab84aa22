// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace moonhalo {

/// Carries the memory of one device to page-locked memory of the host and back, on a stream beside that of the
/// computation. With LibTorch's streams and events alone, so for every kind of device that has them.
class HostStage {
 public:
  explicit HostStage(c10::Device device);

  c10::Device device() const { return stream_.device(); }

  /// Marks the place that the current stream has come to, for to_host and to_device.
  c10::Event mark() const;
  /// Copies on the host of contiguous tensors, as they are computed by `ready`. The host waits until they are
  /// there, once for all; then the tensors may change. Contiguous tensors are one copy.
  std::vector<at::Tensor> to_host(const std::vector<at::Tensor>& tensors, const c10::Event& ready) const;
  /// Page-locked memory for tensors' data: one behind the other where the tensors are.
  static std::vector<at::Tensor> places_for(const std::vector<at::Tensor>& tensors);
  /// From the host to the device, for tensors and their places_for, after `ready`. What comes later on the current
  /// stream waits for that; the host does not.
  void to_device(const std::vector<at::Tensor>& places, const std::vector<at::Tensor>& tensors,
                 const c10::Event& ready) const;

 private:
  c10::Stream compute_stream() const;

  c10::Stream stream_;
};

}  // namespace moonhalo
