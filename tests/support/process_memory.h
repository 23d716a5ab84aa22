// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <string>

namespace moonhalo::testing {

/// Bytes that a line of /proc/self/status ("VmRSS", "VmHWM"), or of another file of that form, tells of this process.
inline int64_t process_memory(const std::string& key, const std::string& file = "/proc/self/status") {
  std::ifstream status(file);
  std::string line;
  while (std::getline(status, line)) {
    if (line.compare(0, key.size() + 1, key + ":") == 0) return std::stoll(line.substr(key.size() + 1)) * 1024;
  }
  TORCH_CHECK(false, "no ", key, " in ", file);
}

/// From here on VmHWM is the peak since now.
inline void reset_peak_memory() { std::ofstream("/proc/self/clear_refs") << "5"; }

/// Measures what `work` adds to the memory of this process at its peak, in bytes: all of it, not tensors alone.
inline double memory_growth(const std::function<void()>& work) {
  malloc_trim(0);
  reset_peak_memory();
  const int64_t before = process_memory("VmRSS");
  work();
  return static_cast<double>(process_memory("VmHWM") - before);
}

}  // namespace moonhalo::testing
