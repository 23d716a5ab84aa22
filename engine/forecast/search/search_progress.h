// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "moonhalo/engine/forecast/least_time.h"

namespace moonhalo {

/// Passes on where a search or a plan is, if it takes longer than a few seconds. Not collective.
class SearchProgress {
 public:
  static constexpr double kInterval = 4;  ///< seconds before the first text, and between two
  /// `show` is called with the messages; null for none.
  explicit SearchProgress(std::function<void(const std::string&)> show, double interval = kInterval)
      : show_(std::move(show)), interval_(interval), next_(seconds_of(ClockOf::kWall) + interval) {}

  /// `text()` describes what is done now. It is asked only where it is shown.
  template <typename Text>
  void at(const Text& text) {
    at(seconds_of(ClockOf::kWall), text);
  }
  /// The same at the second `now` of the clock.
  template <typename Text>
  void at(double now, const Text& text) {
    if (show_ == nullptr || now < next_) return;
    next_ = now + interval_;
    show_(text());
  }

 private:
  std::function<void(const std::string&)> show_;
  double interval_, next_;
};

}  // namespace moonhalo
