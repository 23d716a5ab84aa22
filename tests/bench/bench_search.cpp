// SPDX-License-Identifier: Apache-2.0
// The regret of searches: measured step of the chosen division / of the fastest one. The host is calibrated, then each
// of 20 searches (10 networks on 2 and on 4 thread ranks) forecasts and measures all divisions. Needs a quiet machine
// and up to 5 minutes. Targets: mean <= 1.03, worst <= 1.10.
//   bench_search [SECONDS]      of the calibration, 30 by default
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "moonhalo/engine/forecast/calibrate.h"
#include "tests/support/divided_nets.h"

namespace moonhalo::bench {
namespace {

using testing::DividedNet;

const DividedNet kNets[] = {
    {.batch = 8, .channels = 4, .hidden = 32, .kernel = 3, .height = 64, .width = 64},
    {.batch = 1, .channels = 4, .hidden = 32, .kernel = 3, .height = 128, .width = 128},
    {.batch = 1, .channels = 16, .hidden = 64, .kernel = 5, .height = 64, .width = 64},
    {.batch = 4, .channels = 8, .hidden = 16, .kernel = 7, .height = 64, .width = 64},
    {.batch = 2, .channels = 16, .hidden = 32, .kernel = 3, .height = 96, .width = 96},
    {.batch = 1, .channels = 128, .hidden = 512, .kernel = 1, .height = 16, .width = 16},
    {.batch = 64, .channels = 512, .hidden = 1024, .kernel = 1, .height = 1, .width = 1},
    {.batch = 512, .channels = 256, .hidden = 512, .kernel = 1, .height = 1, .width = 1},
    {.batch = 4, .channels = 64, .hidden = 128, .kernel = 3, .height = 16, .width = 16},
    {.batch = 2, .channels = 64, .hidden = 256, .kernel = 1, .height = 32, .width = 32},
};

struct Regret {
  double value = 1;
  SearchResult result;
};

// All divisions are forecast and measured.
Regret regret_of(const DividedNet& net, int ranks, const Machine& machine) {
  SearchOptions options;
  options.machine = machine;
  options.backend = "threads";
  options.space = {.ranks = ranks,
                   .most_data = net.batch,
                   .most_rows = net.height,
                   .most_columns = net.width,
                   .most_tensor = net.hidden};
  options.prunes = false;
  options.measure = std::ssize(divisions_of(options.space));
  Regret regret;
  run_ranks(ranks, [&](Communicator& world) {
    SearchResult result = search_divisions(world, options, testing::build_divided(net));
    if (world.rank() == 0) regret.result = std::move(result);
  });
  const DivisionResult* chosen = nullptr;
  for (const DivisionResult& one : regret.result.ranked) {
    if (one.measured && (chosen == nullptr || one.step < chosen->step)) chosen = &one;
  }
  if (chosen != nullptr) regret.value = *chosen->measured / *regret.result.ranked.front().measured;
  return regret;
}

int run(double seconds) {
  std::printf("calibrating, %.0f s\n", seconds);
  const Machine machine = calibrate_host(seconds, [](const std::string&) {});
  if (!machine.quiet) std::printf("this machine is not quiet: the figures are rough\n");
  double sum = 0, worst = 0;
  int count = 0;
  for (const DividedNet& net : kNets) {
    for (const int ranks : {2, 4}) {
      const Regret regret = regret_of(net, ranks, machine);
      std::printf("\nbatch %lld, %lld -> %lld channels, kernel %lld, %lld x %lld, %d ranks: regret %.3f\n%s",
                  static_cast<long long>(net.batch), static_cast<long long>(net.channels),
                  static_cast<long long>(net.hidden), static_cast<long long>(net.kernel),
                  static_cast<long long>(net.height), static_cast<long long>(net.width), ranks, regret.value,
                  to_text(regret.result).c_str());
      std::fflush(stdout);
      sum += regret.value;
      worst = std::max(worst, regret.value);
      ++count;
    }
  }
  std::printf("\n%d searches: mean regret %.3f (target 1.03), worst %.3f (target 1.10)\n", count, sum / count, worst);
  return 0;
}

}  // namespace
}  // namespace moonhalo::bench

int main(int argc, char** argv) { return moonhalo::bench::run(argc > 1 ? std::atof(argv[1]) : 30); }
