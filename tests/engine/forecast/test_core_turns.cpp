// SPDX-License-Identifier: Apache-2.0
// Forecasts of ranks that take turns on cores, with times computed by hand.
#include <gtest/gtest.h>

#include <cmath>

#include "moonhalo/engine/forecast/clocks.h"
#include "tests/support/tape_by_hand.h"

namespace moonhalo::test_core_turns {
namespace {

using testing::first_ranks;
using testing::one_kind;
using testing::own_kinds;
using Recording = testing::TapeByHand;

constexpr double kBandwidth = 2e10;

/// A host of two cores without latency, one operation in a nanosecond.
Machine two_cores() {
  Machine machine;
  machine.measured = true;
  machine.device.flops["product"][""] = Recording::kRate;
  machine.device.bandwidth = {{1e12, 1e12}};
  machine.host.cores = 2;
  machine.host.slice = 4e-3;
  machine.levels = {{.name = "all", .bandwidth = kBandwidth}};
  return machine;
}

#define EXPECT_TIME(actual, expected) EXPECT_NEAR((actual) / (expected), 1, 1e-9) << (actual) << " for " << (expected)

// The third rank on 2 cores begins when a slice of another one has ended, and has a core of its own when the rank
// beside these two has ended.
TEST(CoreTurns, X14_RanksTakeTurnsOnCores) {
  Machine machine = two_cores();
  const auto step = [&](int64_t ranks, int64_t cores, double seconds) {
    machine.host.cores = cores;
    Recording rank(0, ranks);
    rank.compute(seconds / 4).compute(seconds * 3 / 4);
    return forecast_step(machine, one_kind(rank, ranks), "threads").step;
  };

  EXPECT_TIME(step(3, 2, 3e-3), 6e-3);
  EXPECT_TIME(step(3, 2, 6e-3), 6e-3 + 4e-3);    // the first has 2 ms left, the third 4
  EXPECT_TIME(step(3, 2, 8e-3), 8e-3 + 4e-3);    // each of the two has 4 ms left
  EXPECT_TIME(step(3, 2, 12e-3), 12e-3 + 8e-3);  // slices of the first, the third, the first: the third has 8 ms left
  EXPECT_TIME(step(3, 2, 20e-3), 20e-3 + 12e-3);
  EXPECT_TIME(step(4, 2, 20e-3), 40e-3);
  EXPECT_TIME(step(5, 2, 3e-3), 9e-3);
  EXPECT_TIME(step(5, 2, 8e-3), 16e-3 + 4e-3);  // three slices, and one more of the first
  EXPECT_TIME(step(5, 2, 24e-3), 60e-3);        // no core is free before
  EXPECT_TIME(step(9, 8, 2e-3), 4e-3);
  EXPECT_TIME(step(9, 8, 80e-3), 80e-3 + 40e-3);
  for (const int64_t ranks : {1, 2, 3, 8}) EXPECT_TIME(step(ranks, 8, 8e-3), 8e-3 / (8 / ranks)) << ranks;
  machine.host.slice = 0;
  EXPECT_TIME(step(3, 2, 20e-3), 30e-3);
}

// The turns begin again after a wait for other ranks, and not after a call of a rank with itself.
TEST(CoreTurns, X14_TurnsEndWithAWait) {
  Machine machine = two_cores();
  const std::vector<int64_t> all = first_ranks(3), self{0};
  Recording sums(0, 3), own(0, 3);
  sums.compute(20e-3).verb(Verb::kBarrier, all, 0).compute(6e-3).verb(Verb::kBarrier, all, 0);
  own.compute(20e-3).verb(Verb::kBarrier, self, 0).compute(6e-3);

  EXPECT_TIME(forecast_step(machine, one_kind(sums, 3), "threads").step, 32e-3 + 10e-3);
  EXPECT_TIME(forecast_step(machine, one_kind(own, 3), "threads").step, 40e-3);
}

// A rank that waits for messages gives up its core. It keeps it if they have come, or if it sent them to itself.
TEST(CoreTurns, X14_TurnsEndWithAWaitForMessages) {
  const int64_t bytes = 20000000;  // 1 ms
  Machine machine = two_cores();
  std::vector<Recording> ring, own;
  for (int32_t i = 0; i < 3; ++i) {
    const TapePart next{(i + 1) % 3 - i, bytes}, before{(i + 2) % 3 - i, bytes}, self{0, bytes};
    ring.push_back(Recording(i, 3).compute(20e-3).exchange({next}, {before}).compute(2e-3).wait().compute(4e-3));
    own.push_back(Recording(i, 3).compute(20e-3).exchange({self}, {self}).compute(2e-3).wait().compute(4e-3));
  }

  const double moving = 1.5e-3;  // by 3 ranks on 2 cores
  EXPECT_TIME(forecast_step(machine, own_kinds(ring), "threads").step, 34e-3 + moving + 8e-3);
  EXPECT_TIME(forecast_step(machine, own_kinds(own), "threads").step, 34e-3 + moving + 6e-3);
  EXPECT_TIME(forecast_step(machine, own_kinds(ring), "tcp").step, 34e-3 + 6e-3);  // hidden
  machine.device.jitter = 0.01;
  const double late = 0.01 * 34e-3 * std::sqrt(2 * std::log(3));
  EXPECT_TIME(forecast_step(machine, own_kinds(ring), "tcp").step, 34e-3 + late + 6e-3);
  EXPECT_TIME(forecast_step(machine, own_kinds(own), "tcp").step, 34e-3 + 6e-3);
}

// A host of 2 cores has 3 of the 6 ranks; those of the other host do not take its cores.
TEST(CoreTurns, X14_RanksOfOtherHostsTakeNoTurns) {
  Machine machine = two_cores();
  machine.levels.insert(machine.levels.begin(), {.name = "host", .ranks = 3, .latency = 0, .bandwidth = kBandwidth});
  Recording rank(0, 6);
  rank.compute(20e-3);

  EXPECT_TIME(forecast_step(machine, one_kind(rank, 6), "mpi").step, 32e-3);
  machine.levels[0].ranks = 2;
  EXPECT_TIME(forecast_step(machine, one_kind(rank, 6), "mpi").step, 20e-3);
}

// Times of ranks that took turns have the turns in them, so they are taken as they are; groups beside others of the
// host take longer in proportion to the ranks. Times of ranks that had a core each are not theirs.
TEST(CoreTurns, X14_TurnsAreInTheTimesOfCollectives) {
  Machine machine = two_cores();
  const int64_t bytes = 1 << 20;
  const auto step = [&](int64_t ranks, int64_t group, Verb verb, const std::string& backend) {
    std::vector<Recording> recordings;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<int64_t> members;
      for (int64_t i = 0; i < group; ++i) members.push_back(rank / group * group + i);
      if (verb == Verb::kExchange) {
        const auto peer = static_cast<int32_t>(rank % group == 0 ? 1 : -1);
        recordings.push_back(Recording(rank, ranks).exchange({{peer, bytes}}, {{peer, bytes}}, members).wait());
      } else {
        recordings.push_back(Recording(rank, ranks).verb(verb, members, bytes));
      }
    }
    return forecast_step(machine, own_kinds(recordings), backend).step;
  };
  const double moved = bytes / kBandwidth;
  EXPECT_TIME(step(2, 2, Verb::kAllReduce, "threads"), moved);
  EXPECT_TIME(step(3, 3, Verb::kAllReduce, "threads"), 1.5 * moved);
  EXPECT_TIME(step(4, 2, Verb::kAllReduce, "threads"), 2 * moved);
  EXPECT_TIME(step(4, 2, Verb::kExchange, "threads"), 2 * moved);
  EXPECT_TIME(step(2, 2, Verb::kExchange, "tcp"), moved);
  EXPECT_TIME(step(4, 2, Verb::kExchange, "tcp"), 2 * moved);
  machine.levels[0].shared = true;
  for (const int64_t ranks : {2, 4}) {
    const auto sharing = static_cast<double>(ranks);
    EXPECT_TIME(step(ranks, 2, Verb::kAllReduce, "threads"), sharing * moved);
    EXPECT_TIME(step(ranks, 2, Verb::kExchange, "tcp"), sharing * moved);
  }

  for (const bool shared : {false, true}) {
    machine.levels[0].shared = shared;
    for (const char* backend : {"threads", "tcp", "mpi"}) {
      for (const char* verb : {"all_reduce", "exchange"}) {
        machine.verbs[backend][2][verb] = {{4, 1e-6}, {bytes, 1e-3}};
        machine.verbs[backend][3][verb] = {{4, 3e-5}, {bytes, 3e-3}};
      }
      for (const Verb verb : {Verb::kAllReduce, Verb::kExchange}) {
        SCOPED_TRACE(std::string(backend) + " " + name(verb));
        EXPECT_TIME(step(2, 2, verb, backend), 1e-3);
      }
      EXPECT_TIME(step(3, 3, Verb::kAllReduce, backend), 3e-3) << backend;
    }
    EXPECT_TIME(step(4, 4, Verb::kAllReduce, "threads"), 3e-3 * 4 / 3);
    EXPECT_TIME(step(4, 2, Verb::kAllReduce, "threads"), 3e-3 * 4 / 3);
    EXPECT_TIME(step(4, 2, Verb::kExchange, "threads"), 3e-3 * 4 / 3);
  }
}

}  // namespace
}  // namespace moonhalo::test_core_turns
