// SPDX-License-Identifier: Apache-2.0
// Forecasts of steps whose times are computed by hand, from tapes made by hand.
#include "moonhalo/engine/forecast/clocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "moonhalo/engine/forecast/costs.h"
#include "moonhalo/engine/pipeline/pipeline_schedule.h"
#include "tests/support/tape_by_hand.h"

namespace moonhalo::test_clocks {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using testing::first_ranks;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::one_kind;
using testing::own_kinds;
using Recording = testing::TapeByHand;

constexpr double kLatency = 3e-6, kBandwidth = 2e10, kRate = testing::TapeByHand::kRate;

/// One level, no launches, no jitter, one operation in a nanosecond.
Machine even_machine() {
  Machine machine;
  machine.name = "by hand";
  machine.measured = true;
  machine.device.kind = "cuda";
  machine.device.flops["product"][""] = kRate;
  machine.device.bandwidth = {{1e12, 1e12}};
  machine.levels = {{.name = "all", .latency = kLatency, .bandwidth = kBandwidth}};
  return machine;
}

std::string all_of(const StepForecast& forecast) {
  std::string all;
  for (const Hindrance& one : forecast.hindrances) all += one.what + "\n  " + one.fix + "\n";
  for (const std::string& note : forecast.notes) all += note + "\n";
  return all;
}

#define EXPECT_TIME(actual, expected) EXPECT_NEAR((actual) / (expected), 1, 1e-9) << (actual) << " for " << (expected)

TEST(Clocks, X14_ASumInARing) {
  const int64_t ranks = 64, bytes = 1 << 30;
  Recording rank(0, ranks);
  rank.verb(Verb::kAllReduce, first_ranks(ranks), bytes);

  const StepForecast forecast = forecast_step(even_machine(), one_kind(rank, ranks), "nccl");

  const double part = static_cast<double>(bytes) / ranks;
  EXPECT_TIME(forecast.step, 2 * (ranks - 1) * (part / kBandwidth + kLatency));
  EXPECT_TIME(forecast.messages, forecast.step);
  EXPECT_EQ(forecast.computing, 0);
}

TEST(Clocks, X14_AShortSumInATree) {
  Recording rank(0, 64);
  rank.verb(Verb::kAllReduce, first_ranks(64), 4);

  EXPECT_TIME(forecast_step(even_machine(), one_kind(rank, 64), "nccl").step, 12 * kLatency + 2 * 4 / kBandwidth);
}

// Recursive halving, then recursive doubling: 2 log2 P messages, and 2 (P - 1) / P of the bytes.
TEST(Clocks, X14_ASumOfMessages) {
  const int64_t ranks = 8, bytes = 8 << 20;
  Recording rank(0, ranks);
  rank.verb(Verb::kAllReduce, first_ranks(ranks), bytes);

  const StepForecast forecast = forecast_step(even_machine(), one_kind(rank, ranks), "tcp");

  EXPECT_TIME(forecast.step, 6 * kLatency + 2.0 * 7 / 8 * bytes / kBandwidth);
}

// A ring passes each host once, with a link of each of its ranks.
TEST(Clocks, X14_ASumOverHosts) {
  Machine machine = even_machine();
  machine.levels = {{.name = "host", .ranks = 8, .latency = 1e-6, .bandwidth = 4e11},
                    {.name = "all", .latency = 4e-6, .bandwidth = 2e10}};
  const int64_t bytes = int64_t{4} << 30;
  Recording rank(0, 32);
  rank.verb(Verb::kAllReduce, first_ranks(32), bytes);

  const double part = bytes / 32.0;
  EXPECT_TIME(forecast_step(machine, one_kind(rank, 32), "nccl").step, 62 * (part / 16e10 + 4e-6));
  machine.levels[1].shared = true;  // one link for the host
  EXPECT_TIME(forecast_step(machine, one_kind(rank, 32), "nccl").step, 62 * (part / 2e10 + 4e-6));
}

// Messages of all ranks of a host go through the link that they share; of neighbours only those at its ends.
TEST(Clocks, X14_RanksOfAHostShareItsLink) {
  Machine machine = even_machine();
  machine.levels = {{.name = "host", .ranks = 4, .latency = 1e-6, .bandwidth = 4e11},
                    {.name = "all", .latency = 4e-6, .bandwidth = 2e10, .shared = true}};
  const int64_t bytes = 1 << 20;
  std::vector<Recording> far, near;
  for (int64_t rank = 0; rank < 8; ++rank) {
    const int32_t across = rank < 4 ? 4 : -4, beside = rank % 2 == 0 ? 1 : -1;
    far.push_back(Recording(rank, 8).exchange({{across, bytes}}, {{across, bytes}}).wait());
    near.push_back(Recording(rank, 8).exchange({{beside, bytes}}, {{beside, bytes}}).wait());
  }
  EXPECT_TIME(forecast_step(machine, own_kinds(far), "tcp").step, 4e-6 + 4.0 * bytes / 2e10);
  EXPECT_TIME(forecast_step(machine, own_kinds(near), "tcp").step, 1e-6 + bytes / 4e11);
}

// The stages of a pipeline: each direction between two ranks in order, one message under way.
TEST(Clocks, X14_TheBubbleOf1F1B) {
  Machine machine = even_machine();
  machine.levels[0].latency = 0;
  const double unit = 1e-3;
  for (const int64_t ranks : {2, 4, 8}) {
    for (const int64_t micros : {1, 4, 16}) {
      const PipelineSchedule schedule = make_schedule(Schedule::k1F1B, ranks, ranks, micros);
      std::vector<Recording> recordings;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        Recording recording(rank, ranks);
        for (const StageCall& call : schedule[rank]) {
          const bool forward = call.pass == Pass::kForward;
          const int32_t on = forward ? 1 : -1;
          const int64_t from = rank - on, to = rank + on;
          if (from >= 0 && from < ranks)
            recording.exchange({}, {{-on, 0}}, {std::min(rank, from), std::max(rank, from)}).wait();
          recording.compute(forward ? unit : 2 * unit);
          if (to >= 0 && to < ranks) recording.exchange({{on, 0}}, {}, {std::min(rank, to), std::max(rank, to)});
        }
        recordings.push_back(recording);
      }
      const StepForecast forecast = forecast_step(machine, own_kinds(recordings), "nccl");
      const double bubble = static_cast<double>(ranks - 1) / static_cast<double>(micros + ranks - 1);
      EXPECT_TIME(forecast.step, 3 * unit * static_cast<double>(micros + ranks - 1));
      EXPECT_NEAR(1 - forecast.efficiency(), bubble, 1e-9) << ranks << " ranks, " << micros << " micro-batches";
    }
  }
}

// A block of 100 x 200 floats in the middle of 3 x 3: two rows and two columns, one latency and three gaps.
TEST(Clocks, X14_TheSurfaceOfABlock) {
  Machine machine = even_machine();
  machine.levels[0].gap = 5e-7;
  std::vector<Recording> recordings;
  for (int32_t rank = 0; rank < 9; ++rank) {
    std::vector<TapePart> parts;
    if (rank >= 3) parts.push_back({-3, 800});
    if (rank < 6) parts.push_back({3, 800});
    if (rank % 3 > 0) parts.push_back({-1, 400});
    if (rank % 3 < 2) parts.push_back({1, 400});
    recordings.push_back(Recording(rank, 9).exchange(parts, parts).wait());
  }
  const StepForecast forecast = forecast_step(machine, own_kinds(recordings), "tcp");

  EXPECT_TIME(forecast.step, kLatency + 3 * 5e-7 + 2 * (800 + 400) / kBandwidth);
  EXPECT_TIME(forecast.kinds[0].messages, kLatency + 5e-7 + (800 + 400) / kBandwidth);
}

RankTapes two_with_halo(double interior, double edge, int64_t bytes) {
  std::vector<Recording> recordings;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const int32_t other = rank == 0 ? 1 : -1;
    recordings.push_back(
        Recording(rank, 2).exchange({{other, bytes}}, {{other, bytes}}).compute(interior).wait().compute(edge));
  }
  return own_kinds(recordings);
}

TEST(Clocks, X14_HalosAreHiddenBehindTheInterior) {
  const int64_t bytes = 20000000;  // 1 ms
  const double moving = kLatency + bytes / kBandwidth;

  const StepForecast hidden = forecast_step(even_machine(), two_with_halo(4e-3, 1e-3, bytes), "tcp");
  EXPECT_TIME(hidden.step, 5e-3);
  EXPECT_EQ(hidden.messages, 0);
  EXPECT_TIME(hidden.kinds[0].hidden, moving);

  const StepForecast exposed = forecast_step(even_machine(), two_with_halo(2e-4, 1e-3, bytes), "tcp");
  EXPECT_TIME(exposed.step, moving + 1e-3);
  EXPECT_TIME(exposed.messages, moving - 2e-4);
  EXPECT_TIME(exposed.kinds[0].hidden, 2e-4);
}

// Threads copy while they wait, so nothing is hidden but the wait.
TEST(Clocks, X14_ThreadsMoveDataInTheirWait) {
  const int64_t bytes = 20000000;
  EXPECT_TIME(forecast_step(even_machine(), two_with_halo(4e-3, 1e-3, bytes), "threads").step,
              5e-3 + bytes / kBandwidth);
}

// Two exchanges after each other on one link.
TEST(Clocks, X14_ExchangesFollowEachOther) {
  std::vector<Recording> recordings;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const TapePart part{rank == 0 ? 1 : -1, 20000000};
    recordings.push_back(Recording(rank, 2).exchange({part}, {part}).exchange({part}, {part}).wait(0).wait(1));
  }
  EXPECT_TIME(forecast_step(even_machine(), own_kinds(recordings), "tcp").step, 2 * (kLatency + 1e-3));
}

TEST(Clocks, X14_AllWaitForTheSlowest) {
  std::vector<Recording> recordings;
  for (int64_t rank = 0; rank < 4; ++rank) {
    recordings.push_back(Recording(rank, 4)
                             .compute(rank == 3 ? 4e-3 : 1e-3, rank == 3 ? "aten::constant_pad_nd" : "aten::mm")
                             .verb(Verb::kAllReduce, first_ranks(4), 4)
                             .compute(1e-3));
  }
  const StepForecast forecast = forecast_step(even_machine(), own_kinds(recordings), "tcp");

  const double sum = 2 * kLatency + 3 * 4 / kBandwidth;  // 64 KiB: one gather, which doubles what a rank has
  EXPECT_TIME(forecast.step, 5e-3 + sum);
  EXPECT_TIME(forecast.waiting, 3e-3 * 3 / 4);
  EXPECT_TIME(forecast.computing + forecast.messages + forecast.waiting, forecast.step);
  EXPECT_EQ(forecast.kinds[forecast.slowest].rank, 3);
  ASSERT_FALSE(forecast.hindrances.empty());
  EXPECT_THAT(forecast.hindrances[0].what,
              AllOf(HasSubstr("rank 3 of 4: 82 % more computing than the mean"), HasSubstr("constant_pad_nd")));
  EXPECT_THAT(forecast.hindrances[0].fix, HasSubstr("make blocks even"));
}

// No rank goes on before the last has come: the long parts of two ranks add up.
TEST(Clocks, X14_LongPartsOnBothSidesOfACallAddUp) {
  Machine machine = even_machine();
  machine.levels[0].latency = 0;
  std::vector<Recording> sums, halos;
  for (int32_t rank = 0; rank < 2; ++rank) {
    const double before = rank == 0 ? 1e-3 : 3e-3, after = 4e-3 - before;
    const int32_t other = rank == 0 ? 1 : -1;
    sums.push_back(Recording(rank, 2).compute(before).verb(Verb::kBarrier, {0, 1}, 0).compute(after));
    halos.push_back(Recording(rank, 2).compute(before).exchange({{other, 0}}, {{other, 0}}).wait().compute(after));
  }
  EXPECT_TIME(forecast_step(machine, own_kinds(sums), "tcp").step, 6e-3);
  EXPECT_TIME(forecast_step(machine, own_kinds(halos), "tcp").step, 6e-3);
}

// A kind stands for all its ranks: those of a row wait for the row's slow one only.
TEST(Clocks, X14_KindsStandForTheirRanks) {
  Machine machine = even_machine();
  machine.levels[0].latency = 0;
  const auto tape = [](int64_t rank, double seconds) {
    const int64_t first = rank / 4 * 4;
    return Recording(rank, 8).compute(seconds).verb(Verb::kBarrier, {first, first + 1, first + 2, first + 3}, 0);
  };
  RankTapes tapes;
  tapes.kinds = {tape(0, 1e-3).tape(), tape(4, 2e-3).tape(), tape(7, 6e-3).tape()};
  tapes.kind_of = {0, 0, 0, 0, 1, 1, 1, 2};

  const StepForecast forecast = forecast_step(machine, tapes, "nccl");

  EXPECT_TIME(forecast.step, 6e-3);
  EXPECT_EQ(forecast.kinds[0].ranks, 4);
  EXPECT_TIME(forecast.kinds[0].spans[0].end, 1e-3);
  EXPECT_TIME(forecast.kinds[1].waiting, 4e-3);
  EXPECT_TIME(forecast.computing, (4 * 1e-3 + 3 * 2e-3 + 6e-3) / 8);
}

TEST(Clocks, X14_TheSlowestOfManyIsLate) {
  Machine machine = even_machine();
  machine.device.jitter = 0.02;
  machine.levels[0].latency = 0;
  Recording rank(0, 64);
  rank.compute(1e-2).verb(Verb::kBarrier, first_ranks(64), 0).compute(1e-2).verb(Verb::kBarrier, first_ranks(64), 0);

  EXPECT_TIME(forecast_step(machine, one_kind(rank, 64), "nccl").step, 2e-2 * (1 + 0.02 * std::sqrt(2 * std::log(64))));
}

// Ranks 0 and 1 exchange what takes 3 ms; ranks 2 and 3 wait in the barrier behind it.
TEST(Clocks, X14_WaitingForTheMessagesOfFewRanksIsNamed) {
  const int64_t bytes = 60000000;
  std::vector<Recording> ranks;
  for (int64_t rank = 0; rank < 4; ++rank) {
    Recording one(rank, 4);
    one.compute(1e-3);
    const TapePart part{rank == 0 ? 1 : -1, bytes};
    if (rank < 2) one.exchange({part}, {part}, {0, 1}).wait();
    one.verb(Verb::kBarrier, first_ranks(4), 0);
    ranks.push_back(one);
  }

  const StepForecast forecast = forecast_step(even_machine(), own_kinds(ranks), "tcp");

  EXPECT_NEAR(forecast.waiting, 1.5e-3, 1e-4);
  EXPECT_THAT(all_of(forecast),
              HasSubstr("rank 0 of 4: its messages take 2.0 times as long as in the mean, most of it exchange\n"));
  EXPECT_THAT(forecast.notes, ::testing::IsEmpty());
}

TEST(Clocks, X14_MoreRanksThanCoresShareThem) {
  Machine machine = even_machine();
  machine.device.kind = "cpu";
  machine.host.cores = 2;
  Recording rank(0, 4);
  rank.compute(1e-3);
  const RankTapes tapes = one_kind(rank, 4);

  EXPECT_TIME(forecast_step(machine, tapes, "threads").step, 2e-3);
  EXPECT_THAT(all_of(forecast_step(machine, tapes, "mpi")),
              HasSubstr("4 ranks share 2 cores: ranks that wait in MPI take cores"));
  machine.host.cores = 8;  // two cores for each, slower beside each other
  machine.neighbours[8]["product"] = 1.5;
  EXPECT_TIME(forecast_step(machine, tapes, "threads").step, 1e-3 / 2 * 1.5);
}

TEST(Clocks, X14_EqualCallsTakeAsLongAsEachOfThem) {
  Machine machine = even_machine();
  machine.device.kind = "cpu";
  machine.device.launch = 1e-3;
  machine.host.cores = 2;
  machine.host.slice = 4e-3;
  const std::vector<int64_t> all = first_ranks(3);
  Recording each(0, 3), together(0, 3);
  for (int i = 0; i < 12; ++i) each.compute(2e-3);
  for (Recording* rank : {&each, &together.compute(2e-3).times(12)}) rank->verb(Verb::kBarrier, all, 0).compute(1e-3);

  const StepForecast expected = forecast_step(machine, one_kind(each, 3), "threads");
  const StepForecast forecast = forecast_step(machine, one_kind(together, 3), "threads");

  EXPECT_TIME(forecast.step, expected.step);
  EXPECT_TIME(forecast.computing, expected.computing);
  EXPECT_TIME(forecast.high, expected.high);
  EXPECT_EQ(all_of(forecast), all_of(expected));
  EXPECT_THAT(all_of(forecast), HasSubstr("starting 13 operators"));
}

TEST(Clocks, X14_NeighboursShareMemoryAndNotCaches) {
  Machine machine = even_machine();
  machine.device.kind = "cpu";
  machine.host.cores = 8;
  machine.device.bandwidth = {{4000, 1e9}, {1e12, 1e9}};
  machine.neighbours[8]["stream"] = 5;  // and 1 + 4 / 7 of 2 busy cores
  const auto step = [&](int64_t bytes, int64_t ranks) {
    Recording rank(0, ranks);
    rank.copy(bytes);
    return forecast_step(machine, one_kind(rank, ranks), "threads").step;
  };

  EXPECT_TIME(step(4000, 8), 4e-6);
  EXPECT_TIME(step(5000, 8), 5e-6 * 5);
  EXPECT_TIME(step(5000, 2), 5e-6 * (1 + 4.0 / 7));
  EXPECT_TIME(step(5000, 1), 5e-6);
}

TEST(Clocks, X14_TablesComeBeforeRates) {
  Machine machine = even_machine();
  machine.operators["aten::mm "][1] = 7e-3;
  machine.verbs["tcp"][4]["all_reduce"] = {{4, 1e-5}, {1004, 2e-5}};
  Recording rank(0, 4);
  rank.compute(1).verb(Verb::kAllReduce, first_ranks(4), 504);

  const StepForecast forecast = forecast_step(machine, one_kind(rank, 4), "tcp");

  EXPECT_TIME(forecast.step, 7e-3 + 1.5e-5);
  EXPECT_TIME(forecast.high - forecast.step, 0.05 * std::hypot(7e-3, 1.5e-5));
  EXPECT_TIME(forecast.step - forecast.low, forecast.high - forecast.step);
}

// Between numbers of ranks that were measured, and above them.
TEST(Clocks, X14_TablesOfOtherNumbersOfRanksAreScaled) {
  Machine machine = even_machine();
  machine.verbs["tcp"][2]["all_reduce"] = {{4, 1e-5}};
  machine.verbs["tcp"][8]["all_reduce"] = {{4, 3e-5}};
  const auto step = [&](int64_t ranks) {
    Recording rank(0, ranks);
    rank.verb(Verb::kAllReduce, first_ranks(ranks), 4);
    return forecast_step(machine, one_kind(rank, ranks), "tcp");
  };
  EXPECT_TIME(step(4).step, 2e-5);
  EXPECT_TIME(step(4).high - step(4).step, 0.15 * 2e-5);
  const double of_8 = 3 * kLatency + 7 * 4 / kBandwidth, of_64 = 6 * kLatency + 63 * 4 / kBandwidth;
  EXPECT_TIME(step(64).step, 3e-5 * of_64 / of_8);
}

TEST(Clocks, X14_WhatHurtsFirstHasARemedy) {
  Machine machine = even_machine();
  machine.measured = false;
  Recording rank(0, 64);
  rank.compute(1e-4);
  rank.traffic(Traffic::kAllReduce);
  for (int i = 0; i < 62; ++i) rank.verb(Verb::kAllReduce, first_ranks(64), 512);

  const StepForecast forecast = forecast_step(machine, one_kind(rank, 64), "tcp");

  ASSERT_FALSE(forecast.hindrances.empty());
  EXPECT_THAT(forecast.hindrances[0].what, HasSubstr("latency of 62 calls: sums (62 of at most 64 KiB)"));
  EXPECT_THAT(forecast.hindrances[0].fix, HasSubstr("add up what several calls give in one sum"));
  EXPECT_THAT(forecast.notes, Contains(HasSubstr("'by hand' was written by hand")));
}

TEST(Clocks, X14_UnknownWorkIsNamed) {
  Recording rank(0, 1);
  rank.compute(1e-3, "moonhalo::sample");
  RankTapes tapes = one_kind(rank, 1);
  std::get<TapeOperator>(tapes.kinds[0].events[0].what).known = false;

  EXPECT_THAT(forecast_step(even_machine(), tapes, "nccl").notes, Contains(HasSubstr("moonhalo::sample: ")));
}

// Tapes that do not fit do not make it hang.
TEST(Clocks, X14_CallsThatNoOtherTapeHasAreNamed) {
  const std::vector<Recording> recordings{Recording(0, 2).compute(1e-3).verb(Verb::kBarrier, {0, 1}, 0),
                                          Recording(1, 2).compute(2e-3)};

  EXPECT_THAT(forecast_step(even_machine(), own_kinds(recordings), "nccl").notes,
              Contains(HasSubstr("rank 0 waits for calls that no other tape has")));
}

// Every rank of four sends to all others. The two in the middle are of one kind, and the tape of rank 1 has no peer two
// places before it, as rank 2 has.
TEST(Clocks, X14_APlaceOfAnotherTapeIsTheSameExchange) {
  const int64_t bytes = 1 << 20;
  const auto tape = [&](int64_t rank, double seconds) {
    std::vector<TapePart> parts;
    for (int32_t peer = 0; peer < 4; ++peer) {
      if (peer != rank) parts.push_back({peer - static_cast<int32_t>(rank), bytes});
    }
    Recording recording(rank, 4);
    for (int step = 0; step < 3; ++step) recording.exchange(parts, parts).compute(seconds).wait();
    return recording;
  };
  RankTapes tapes = own_kinds({tape(0, 5e-3), tape(1, 1e-3), tape(3, 2e-3)});
  tapes.kind_of = {0, 1, 1, 2};

  const StepForecast forecast = forecast_step(even_machine(), tapes, "nccl");
  const StepForecast own =
      forecast_step(even_machine(), own_kinds({tape(0, 5e-3), tape(1, 1e-3), tape(2, 1e-3), tape(3, 2e-3)}), "nccl");

  EXPECT_THAT(forecast.notes, Not(Contains(HasSubstr("that no other tape has"))));
  EXPECT_TIME(forecast.step, own.step);
  EXPECT_TIME(forecast.waiting, own.waiting);
}

}  // namespace
}  // namespace moonhalo::test_clocks
