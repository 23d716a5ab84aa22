// SPDX-License-Identifier: Apache-2.0
// The regret of searches: the step of the chosen division / that of the fastest one. The host is calibrated, then 20
// searches (10 networks on 2 and on 4 thread ranks) forecast all divisions and run them in turns. Half of the rounds
// choose among the best three forecasts, as a search with `measure = 3` does; the other half judges the choice. The
// fastest division against itself in both halves says what of it is noise. Needs a quiet machine and some 10 minutes.
// Targets: mean <= 1.03, worst <= 1.10.
//   bench_search [SECONDS [ROUNDS]]      of the calibration, 30 by default; of all divisions, 8 by default
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "moonhalo/engine/forecast/calibrate.h"
#include "moonhalo/engine/forecast/search/division_times.h"
#include "tests/bench/taking_turns.h"
#include "tests/support/divided_nets.h"

namespace moonhalo::bench {
namespace {

using testing::DividedNet;

constexpr size_t kMeasured = 3;

// Steps of 3 to 50 ms on one rank.
const DividedNet kNets[] = {
    {.batch = 8, .channels = 4, .hidden = 32, .kernel = 3, .height = 64, .width = 64},
    {.batch = 1, .channels = 4, .hidden = 32, .kernel = 3, .height = 256, .width = 256},
    {.batch = 1, .channels = 16, .hidden = 64, .kernel = 5, .height = 64, .width = 64},
    {.batch = 4, .channels = 8, .hidden = 16, .kernel = 7, .height = 96, .width = 96},
    {.batch = 2, .channels = 16, .hidden = 32, .kernel = 3, .height = 128, .width = 128},
    {.batch = 1, .channels = 256, .hidden = 1024, .kernel = 1, .height = 16, .width = 16},
    {.batch = 64, .channels = 512, .hidden = 1024, .kernel = 1, .height = 1, .width = 1},
    {.batch = 512, .channels = 256, .hidden = 512, .kernel = 1, .height = 1, .width = 1},
    {.batch = 4, .channels = 64, .hidden = 128, .kernel = 3, .height = 32, .width = 32},
    {.batch = 2, .channels = 64, .hidden = 256, .kernel = 1, .height = 64, .width = 64},
};

// The divisions as a search ranks them by forecasts, and medians of the even and odd rounds.
struct Timed {
  SearchResult result;
  std::vector<double> even, odd;
};

std::vector<double> medians(const std::vector<std::vector<double>>& times, size_t first) {
  std::vector<double> result;
  for (const std::vector<double>& rounds : times) {
    std::vector<double> half;
    for (size_t round = first; round < rounds.size(); round += 2) half.push_back(rounds[round]);
    result.push_back(median(std::move(half)));
  }
  return result;
}

Timed time_all(const DividedNet& net, int ranks, const Machine& machine, int rounds) {
  SearchOptions options;
  options.machine = machine;
  options.backend = "threads";
  options.space = {.ranks = ranks,
                   .most_data = net.batch,
                   .most_rows = net.height,
                   .most_columns = net.width,
                   .most_tensor = net.hidden};
  options.prunes = false;
  Timed timed;
  timed.result = search_divisions(options, testing::build_divided(net));
  std::vector<Division> divisions;
  for (const DivisionResult& one : timed.result.ranked) divisions.push_back(one.division);
  run_ranks(ranks, [&](Communicator& world) {
    const auto times = time_divisions(world, testing::build_divided(net), divisions, rounds);
    if (world.rank() != 0) return;
    timed.even = medians(times, 0);
    timed.odd = medians(times, 1);
  });
  return timed;
}

// The mean and the largest of ratios.
struct Ratios {
  double sum = 0, worst = 0;
  int count = 0;
  void add(double ratio) {
    sum += ratio;
    worst = std::max(worst, ratio);
    ++count;
  }
};

// The fastest of `times` among the first `count`.
size_t fastest(const std::vector<double>& times, size_t count) {
  return std::min_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(std::min(count, times.size()))) -
         times.begin();
}

void print(const Timed& timed) {
  std::printf("  %-32s %10s %10s %10s\n", "division", "forecast", "even", "odd rounds");
  for (size_t i = 0; i < timed.even.size(); ++i) {
    const DivisionResult& one = timed.result.ranked[i];
    std::printf("  %-32s %7.2f ms %7.2f ms %7.2f ms\n", one.division.text().c_str(), 1e3 * one.step,
                1e3 * timed.even[i], 1e3 * timed.odd[i]);
  }
}

int run(double seconds, int rounds) {
  std::printf("calibrating, %.0f s\n", seconds);
  const Machine machine = calibrate_host(seconds, [](const std::string&) {});
  if (!machine.quiet) std::printf("this machine is not quiet: the figures are rough\n");
  Ratios by_forecast, by_measure, of_itself;
  for (const int ranks : {2, 4}) {
    Ratios of_ranks;
    for (const DividedNet& net : kNets) {
      const Timed timed = time_all(net, ranks, machine, rounds);
      // Odd rounds judge what even rounds choose. The fastest of the odd ones is also their luckiest, so that the
      // fastest of the even ones is what both are compared with.
      const size_t best = fastest(timed.even, timed.even.size());
      const double forecast = timed.odd[0] / timed.odd[best];
      const double measured = timed.odd[fastest(timed.even, kMeasured)] / timed.odd[best];
      const double spread = std::max(timed.odd[best] / timed.even[best], timed.even[best] / timed.odd[best]);
      by_forecast.add(forecast);
      by_measure.add(measured);
      of_ranks.add(measured);
      of_itself.add(spread);
      std::printf(
          "\nbatch %lld, %lld -> %lld channels, kernel %lld, %lld x %lld, %d ranks: regret %.3f, of the forecast alone "
          "%.3f; the fastest against itself %.3f\n",
          static_cast<long long>(net.batch), static_cast<long long>(net.channels), static_cast<long long>(net.hidden),
          static_cast<long long>(net.kernel), static_cast<long long>(net.height), static_cast<long long>(net.width),
          ranks, measured, forecast, spread);
      print(timed);
      std::fflush(stdout);
    }
    std::printf("\n%d ranks: mean regret %.3f, worst %.3f\n", ranks, of_ranks.sum / of_ranks.count, of_ranks.worst);
  }
  std::printf(
      "\n%d searches: mean regret %.3f (target 1.03), worst %.3f (target 1.10); of the forecasts alone %.3f, worst "
      "%.3f; the fastest against itself %.3f, worst %.3f\n",
      by_measure.count, by_measure.sum / by_measure.count, by_measure.worst, by_forecast.sum / by_forecast.count,
      by_forecast.worst, of_itself.sum / of_itself.count, of_itself.worst);
  return 0;
}

}  // namespace
}  // namespace moonhalo::bench

int main(int argc, char** argv) {
  return moonhalo::bench::run(argc > 1 ? std::atof(argv[1]) : 30, argc > 2 ? std::atoi(argv[2]) : 8);
}
