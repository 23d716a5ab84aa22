// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/search/division_times.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/forecast/least_time.h"

namespace moonhalo {
namespace {

constexpr int kWarmSteps = 2;
constexpr double kSecondsOfTurn = 0.05;
constexpr int kLeastSteps = 2, kMostSteps = 100;

// Rank 0's value, bit for bit.
double of_first_rank(Communicator& world, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return std::stod(broadcast_string(world, text));
}

// Seconds of a step, where `count` follow each other.
double time_of_steps(Communicator& world, const BuiltStep& built, int count) {
  world.barrier();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) built.step();
  world.barrier();
  return of_first_rank(world, seconds_since(begin) / count);
}

double time_of_turn(Communicator& world, const BuildDivided& build, const Division& division) {
  const BuiltStep built = build(division, world);
  check_built(built);
  double seconds = 0;
  for (int i = 0; i < kWarmSteps; ++i) seconds = time_of_steps(world, built, 1);
  const double wanted = kSecondsOfTurn / std::max(seconds, 1e-6);
  return time_of_steps(world, built, static_cast<int>(std::clamp<double>(wanted, kLeastSteps, kMostSteps)));
}

}  // namespace

std::vector<std::vector<double>> time_divisions(Communicator& world, const BuildDivided& build,
                                                const std::vector<Division>& divisions, int rounds) {
  std::vector<std::vector<double>> times(divisions.size(), std::vector<double>(rounds));
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < divisions.size(); ++i) {
      const size_t turn = round % 2 == 0 ? i : divisions.size() - 1 - i;
      times[turn][round] = time_of_turn(world, build, divisions[turn]);
    }
  }
  return times;
}

}  // namespace moonhalo
