// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/fake_call_time.h"

#include <algorithm>

namespace moonhalo {

int64_t FakeCallTime::use_memory(int64_t bytes) {
  constexpr int64_t kLine = 64;
  memory_.resize(4 * kMostBytes);  // what one call has used is not used by the next three
  const int64_t lines = (std::clamp<int64_t>(bytes, 0, kMostBytes) + kLine - 1) / kLine;
  for (int64_t line = 0; line < lines; ++line) {
    ++memory_[next_];
    next_ = (next_ + kLine) % memory_.size();
  }
  return lines * kLine;
}

}  // namespace moonhalo
