// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>

namespace moonhalo {

/// Lets others have the core between two polls for messages: at first not, for the sake of speed.
class PollingPause {
 public:
  using Duration = std::chrono::steady_clock::duration;
  enum Step { kPoll, kYield, kNap };
  /// After a wait of this length no message is expected at once: callers sleep instead.
  static constexpr std::chrono::milliseconds kLongest{2};

  /// `bytes`: what is to come or to leave.
  explicit PollingPause(size_t bytes);

  /// Returns what to do after a wait of this length. `crowded`: programs that do not wait share the core.
  Step step(Duration waited, bool crowded) const;
  /// Does that, and finds out whether the core is crowded.
  void pause(Duration waited) const;

 private:
  Duration transfer_;
};

}  // namespace moonhalo
