// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace moonhalo::testing {

/// The bytes that this thread has read from files so far, as the kernel counts them. A call itself reads about 120.
inline int64_t bytes_read_here() {
  std::ifstream io("/proc/thread-self/io");
  std::string key;
  for (int64_t value = 0; io >> key >> value;) {
    if (key == "rchar:") return value;
  }
  ADD_FAILURE() << "the kernel does not count what a thread reads";
  return -1;
}

}  // namespace moonhalo::testing
