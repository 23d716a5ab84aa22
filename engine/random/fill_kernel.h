// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "moonhalo/engine/random/kernels/distribution.h"

namespace moonhalo {
namespace random_fill {

constexpr int kMostDims = 8;

/// A block to be filled; strides in elements, of one part where an element has two (complex numbers).
struct Launch {
  uint64_t key;
  Distribution distribution;
  void* to;
  int64_t elements;
  int dims, parts;
  int64_t shape[kMostDims], stride[kMostDims], offset[kMostDims];
  uint64_t global_stride[kMostDims];
};

}  // namespace random_fill

/// Queued on the current stream of `device`; nothing is waited for. Types: floating point and integers; complex numbers
/// are two parts of their real type.
using FillKernel = void (*)(const random_fill::Launch& launch, c10::ScalarType type, c10::Device device);
/// For the files that define kernels, at start.
void register_fill_kernel(c10::DeviceType type, FillKernel kernel);

}  // namespace moonhalo
