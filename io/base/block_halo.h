// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace moonhalo::io {

/// The number of halo rows to read below (`lo`) and above (`hi`) the owned block, per dim, clipped at the ends of the
/// domain. Empty: none.
struct BlockHalo {
  std::vector<int64_t> lo = {};
  std::vector<int64_t> hi = {};
};

}  // namespace moonhalo::io
