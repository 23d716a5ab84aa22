// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/least_time.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <utility>

namespace moonhalo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 5;
constexpr double kStable = 0.03;

}  // namespace

double seconds_of(ClockOf clock) {
  timespec time{};
  clock_gettime(clock == ClockOf::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median_of(std::vector<double> values) {
  TORCH_INTERNAL_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double seconds_of_reading(ClockOf clock) {
  constexpr int kReadings = 101;
  std::vector<double> times;
  for (int i = 0; i < kReadings; ++i) {
    const double begin = seconds_of(clock);
    times.push_back(seconds_of(clock) - begin);
  }
  return median_of(std::move(times));
}

MeasuredTime least_time(Communicator& group, double budget, int calls, const std::function<void()>& work, ClockOf clock,
                        const std::function<void()>& before) {
  const Clock::time_point start = Clock::now();
  const at::Tensor slowest = at::empty({2}, at::kDouble);
  double* const numbers = slowest.mutable_data_ptr<double>();
  at::Tensor shared = slowest;
  for (int call = 0; call < calls; ++call) work();
  MeasuredTime least;
  std::vector<double> times;
  while (!least.stable) {
    double round = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) {
      if (before) before();
      group.barrier();
      const double begin = seconds_of(clock);
      for (int call = 0; call < calls; ++call) work();
      numbers[0] = (seconds_of(clock) - begin) / calls;
      numbers[1] = seconds_since(start);
      group.all_reduce(shared, ReduceOp::kMax);
      round = std::min(round, numbers[0]);
      times.push_back(numbers[0]);
    }
    // Two rounds have about the same least time: no luckier one is likely.
    least.stable = std::abs(round - least.seconds) <= kStable * std::min(round, least.seconds);
    least.seconds = std::min(least.seconds, round);
    if (!least.stable && numbers[1] > budget) break;
  }
  least.median = median_of(std::move(times));
  return least;
}

}  // namespace moonhalo
