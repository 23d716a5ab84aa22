// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <type_traits>

#include "moonhalo/engine/random/fill_kernel.h"

namespace moonhalo::random_fill {

/// As LibTorch converts: half types by way of float32.
template <typename T, typename Number>
constexpr T stored(Number number) {
  if constexpr (std::is_same_v<T, c10::Half> || std::is_same_v<T, c10::BFloat16>) {
    return T(static_cast<float>(number));
  } else {
    return static_cast<T>(number);
  }
}

/// Makes the numbers of one element of the block.
template <typename T>
struct Fill {
  static constexpr void run(const Launch& launch, int64_t element) {
    int64_t at = 0, left = element;
    uint64_t index = 0;
    for (int d = launch.dims - 1; d >= 0; --d) {
      const int64_t row = left % launch.shape[d];
      left /= launch.shape[d];
      at += row * launch.stride[d];
      index += static_cast<uint64_t>(launch.offset[d] + row) * launch.global_stride[d];
    }
    Draws draws(launch.key, index);
    T* const to = static_cast<T*>(launch.to) + at;
    for (int part = 0; part < launch.parts; ++part) {
      to[part] = launch.distribution.kind == Distribution::kInteger
                     ? stored<T>(draw_integer(launch.distribution, draws))
                     : stored<T>(draw(launch.distribution, draws));
    }
  }
};

/// The kernel of a kind of device, queued by `Run::run<Fill<T>>(launch, device)`.
template <typename Run>
FillKernel kernel_by() {
  return [](const Launch& launch, c10::ScalarType type, c10::Device device) {
    switch (type) {
      case c10::kFloat:
        return Run::template run<Fill<float>>(launch, device);
      case c10::kDouble:
        return Run::template run<Fill<double>>(launch, device);
      case c10::kHalf:
        return Run::template run<Fill<c10::Half>>(launch, device);
      case c10::kBFloat16:
        return Run::template run<Fill<c10::BFloat16>>(launch, device);
      case c10::kBool:
        return Run::template run<Fill<bool>>(launch, device);
      case c10::kByte:
        return Run::template run<Fill<uint8_t>>(launch, device);
      case c10::kChar:
        return Run::template run<Fill<int8_t>>(launch, device);
      case c10::kShort:
        return Run::template run<Fill<int16_t>>(launch, device);
      case c10::kInt:
        return Run::template run<Fill<int32_t>>(launch, device);
      case c10::kLong:
        return Run::template run<Fill<int64_t>>(launch, device);
      default:
        TORCH_CHECK_NOT_IMPLEMENTED(false, "random numbers of ", type, " on ", device, "\n  have  no kernel",
                                    "\n  fix   draw another type and convert it");
    }
  };
}

}  // namespace moonhalo::random_fill
