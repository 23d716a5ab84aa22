// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace moonhalo::testing {

/// A limit that no test waits for: on the busiest machine, too, only a hang takes longer.
inline constexpr std::chrono::seconds kHang{300};

/// Calls `attempt` with this limit, and with longer ones while it returns what is wrong; returns the last of that, ""
/// if the test is right with one of them. A limit that a test waits for may be too short for the rest on a busy
/// machine.
inline std::string with_longer_limits(std::chrono::milliseconds limit,
                                      const std::function<std::string(std::chrono::milliseconds)>& attempt) {
  for (;; limit *= 5) {
    const std::string wrong = attempt(limit);
    if (wrong.empty() || limit > std::chrono::seconds(10)) return wrong;
  }
}

}  // namespace moonhalo::testing
