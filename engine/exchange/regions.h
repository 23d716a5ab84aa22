// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "moonhalo/engine/exchange/kernels/regions.h"

namespace moonhalo {

/// Kernels of one kind of device, queued on the current stream of `device`; nothing is waited for.
struct RegionKernels {
  /// Elements of 1, 2, 4, 8 or 16 bytes.
  void (*copy)(const regions::Launch& launch, int element_bytes, c10::Device device);
  /// Elements of floating point, half types and complex numbers included.
  void (*add)(const regions::Launch& launch, at::ScalarType type, c10::Device device);
};
/// For the files that define kernels, at start.
void register_region_kernels(c10::DeviceType type, const RegionKernels& kernels);

struct RegionCopy {
  at::Tensor from, to;  ///< of one shape, dtype and device
};
/// Regions of `to` do not overlap. One launch for some thirty where the device has kernels, else one each.
void copy_regions(const std::vector<RegionCopy>& copies);

struct RegionSum {
  std::vector<int64_t> begin;  ///< where the part begins in the tensor
  at::Tensor part;
};
/// Adds the parts in their order; they may overlap. Launches as above.
void add_regions(const at::Tensor& into, const std::vector<RegionSum>& sums);

}  // namespace moonhalo
