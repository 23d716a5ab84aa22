// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace moonhalo::io {

/// Rows to read beyond the owned block on either side of each dim, clipped at the domain's border;
/// empty: none.
struct BlockHalo {
  std::vector<int64_t> lo = {};
  std::vector<int64_t> hi = {};
};

}  // namespace moonhalo::io
