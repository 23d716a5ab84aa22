// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <c10/util/complex.h>

#include "moonhalo/engine/exchange/kernels/regions.h"
#include "moonhalo/engine/exchange/regions.h"

namespace moonhalo::regions {

struct Bytes16 {
  uint64_t first, second;
};

/// The kernels of a kind of device, queued by `Run::run<Kernel>(launch, device)`.
template <typename Run>
RegionKernels kernels_by() {
  const auto copy = [](const Launch& launch, int element_bytes, c10::Device device) {
    switch (element_bytes) {
      case 1:
        return Run::template run<Copy<uint8_t>>(launch, device);
      case 2:
        return Run::template run<Copy<uint16_t>>(launch, device);
      case 4:
        return Run::template run<Copy<uint32_t>>(launch, device);
      case 8:
        return Run::template run<Copy<uint64_t>>(launch, device);
      case 16:
        return Run::template run<Copy<Bytes16>>(launch, device);
    }
    TORCH_INTERNAL_ASSERT(false, "elements of ", element_bytes, " bytes");
  };
  const auto add = [](const Launch& launch, c10::ScalarType type, c10::Device device) {
    switch (type) {
      case c10::kFloat:
        return Run::template run<Add<float>>(launch, device);
      case c10::kDouble:
        return Run::template run<Add<double>>(launch, device);
      case c10::kHalf:
        return Run::template run<Add<c10::Half>>(launch, device);
      case c10::kBFloat16:
        return Run::template run<Add<c10::BFloat16>>(launch, device);
      case c10::kComplexFloat:
        return Run::template run<Add<c10::complex<float>>>(launch, device);
      case c10::kComplexDouble:
        return Run::template run<Add<c10::complex<double>>>(launch, device);
      default:
        TORCH_INTERNAL_ASSERT(false, "sums of ", type);
    }
  };
  return {copy, add};
}

}  // namespace moonhalo::regions
