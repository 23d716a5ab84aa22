// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {

/// The row of [0, extent) that is read for row `i`, any integer, of a domain with this boundary; -1 for none: beyond
/// the ends with Boundary::kZero, and where there are no rows at all. Reflection reads the domain forth and back, its
/// end rows once.
inline int64_t boundary_index(int64_t i, int64_t extent, Boundary boundary) {
  if (extent == 0) return -1;
  if (i >= 0 && i < extent) return i;
  const auto wrapped = [&](int64_t period) { return ((i % period) + period) % period; };
  switch (boundary) {
    case Boundary::kZero:
      return -1;
    case Boundary::kCircular:
      return wrapped(extent);
    case Boundary::kReplicate:
      return i < 0 ? 0 : extent - 1;
    case Boundary::kReflect: {
      const int64_t period = std::max<int64_t>(1, 2 * (extent - 1)), phase = wrapped(period);
      return phase < extent ? phase : period - phase;
    }
  }
  return -1;
}

}  // namespace moonhalo
