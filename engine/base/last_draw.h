// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace moonhalo {

/// The last draws of this thread: how many random operators there were, and the last one's key (ElementRandom).
struct LastDraw {
  uint64_t count = 0, key = 0;
};
const LastDraw& last_draw();

}  // namespace moonhalo
