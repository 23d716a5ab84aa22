// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>

namespace moonhalo {

/// The clock of profiles: nanoseconds of the system's monotonic clock, which all processes of a system share. Not
/// collective.
inline int64_t profile_clock() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

}  // namespace moonhalo
