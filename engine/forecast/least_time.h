// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Seconds of a clock that never goes back. Not collective.
double seconds_since(std::chrono::steady_clock::time_point begin);

/// The median; of an even number of values the larger one of the two in the middle. There must be at least one.
double median_of(std::vector<double> values);

/// The least of repeated times, their median, and whether they agreed.
struct MeasuredTime {
  double seconds = std::numeric_limits<double>::infinity();
  double median = std::numeric_limits<double>::infinity();
  bool stable = false;
};

/// The time that a clock counts. Processor time of the calling thread is not longer where other programs run.
enum class ClockOf { kWall, kThread };
/// Its seconds since some time in the past. Not collective.
double seconds_of(ClockOf clock);

/// The seconds that reading the clock takes, the median. Not collective.
double seconds_of_reading(ClockOf clock);

/// The seconds of one of `calls` calls of `work` on the slowest rank: the least of five repetitions, and of five more
/// until these agree within 3 % or `budget` seconds are over. All ranks of the group do the work at the same time, and
/// repeat it the same number of times. Work on one thread that waits for nothing may have ClockOf::kThread. `before`:
/// called before each repetition, and not timed. Collective.
MeasuredTime least_time(Communicator& group, double budget, int calls, const std::function<void()>& work,
                        ClockOf clock = ClockOf::kWall, const std::function<void()>& before = {});

}  // namespace moonhalo
