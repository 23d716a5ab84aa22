// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "moonhalo/engine/forecast/least_time.h"

namespace moonhalo {

/// Passes on where a search is, if it takes longer than a few seconds. Not collective.
class SearchProgress {
 public:
  static constexpr double kInterval = 4;  ///< seconds before the first text, and between two
  /// `show` is called with the messages; null for none.
  explicit SearchProgress(std::function<void(const std::string&)> show)
      : show_(std::move(show)), next_(seconds_of(ClockOf::kWall) + kInterval) {}

  /// `text()` describes what is done now. It is asked only where it is shown.
  template <typename Text>
  void at(const Text& text) {
    at(seconds_of(ClockOf::kWall), text);
  }
  /// The same at the second `now` of the clock.
  template <typename Text>
  void at(double now, const Text& text) {
    if (show_ == nullptr || now < next_) return;
    next_ = now + kInterval;
    show_(text());
  }

 private:
  std::function<void(const std::string&)> show_;
  double next_;
};

}  // namespace moonhalo
