// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace moonhalo {

/// The processor time of fake calls of a rank, which is not the host's. Not collective.
class FakeCallTime {
 public:
  void begin_step() { seconds_ = 0; }
  double seconds() const { return seconds_; }
  /// Makes all calls since begin_step() take `seconds`: a call has the time of those inside it, too.
  void set(double seconds) { seconds_ = seconds; }
  /// Writes other memory, as a kernel of as many bytes would, at most kMostBytes. So the host finds its own data as far
  /// away as in a real step. Returns the bytes.
  int64_t use_memory(int64_t bytes);
  static constexpr int64_t kMostBytes = 4 << 20;  ///< more than the caches of a core

 private:
  double seconds_ = 0;
  std::vector<char> memory_;
  size_t next_ = 0;
};

}  // namespace moonhalo
