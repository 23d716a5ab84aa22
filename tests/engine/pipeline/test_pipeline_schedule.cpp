// SPDX-License-Identifier: Apache-2.0
// Schedules of pipelines, gone through in simulated time; no ranks.
#include "moonhalo/engine/pipeline/pipeline_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_pipeline_schedule {
namespace {

using ::testing::HasSubstr;

// All ranks' lists hold every call once, in an order in which no rank waits for ever, for any numbers.
template <typename Check>
void for_all_sizes(const Check& check) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (int64_t chunks = 1; chunks <= 4; ++chunks) {
      for (int64_t micros = 1; micros <= 16; ++micros) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(chunks) + " stages each, " +
                     std::to_string(micros) + " micro-batches");
        check(ranks, chunks, micros);
      }
    }
  }
}

TEST(PipelineSchedule, PrintsItsLists) {
  EXPECT_EQ(to_string(make_schedule(Schedule::kGPipe, 2, 2, 3)),
            "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2\nF1.0 F1.1 F1.2 B1.0 B1.1 B1.2\n");
  EXPECT_EQ(to_string(make_schedule(Schedule::k1F1B, 2, 2, 3)),
            "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2\nF1.0 B1.0 F1.1 B1.1 F1.2 B1.2\n");
  // Two stages on each rank, the micro-batches in groups of 3 and 2.
  EXPECT_EQ(to_string(make_schedule(Schedule::kInterleaved1F1B, 2, 4, 5)),
            "F0.0 F0.1 F0.2 F2.0 F2.1 F2.2 B2.0 F0.3 B2.1 F0.4 B2.2 F2.3 B0.0 F2.4 B0.1 B0.2 B2.3 B2.4 B0.3 B0.4\n"
            "F1.0 F1.1 F1.2 F3.0 B3.0 F3.1 B3.1 F3.2 B3.2 F1.3 B1.0 F1.4 B1.1 F3.3 B1.2 F3.4 B3.3 B3.4 B1.3 B1.4\n");
  EXPECT_EQ(to_string(make_forward_schedule(2, 4, 3)),
            "F0.0 F0.1 F0.2 F2.0 F2.1 F2.2\nF1.0 F1.1 F1.2 F3.0 F3.1 F3.2\n");
}

TEST(PipelineSchedule, GPipeWaitsForOneTripAndKeepsAll) {
  for_all_sizes([](int64_t ranks, int64_t chunks, int64_t micros) {
    const ScheduleCosts costs =
        simulate(make_schedule(Schedule::kGPipe, ranks, ranks * chunks, micros), ranks * chunks, micros);

    EXPECT_EQ(costs.live, std::vector<int64_t>(ranks, chunks * micros));
    if (chunks > 1 && micros % ranks != 0) return;
    EXPECT_EQ(costs.time, 3 * (chunks * micros + ranks - 1));
  });
}

TEST(PipelineSchedule, OneForwardOneBackwardKeepsAsManyAsStagesFollow) {
  for_all_sizes([](int64_t ranks, int64_t chunks, int64_t micros) {
    if (chunks > 1) return;
    const ScheduleCosts costs = simulate(make_schedule(Schedule::k1F1B, ranks, ranks, micros), ranks, micros);

    EXPECT_EQ(costs.time, 3 * (micros + ranks - 1));
    EXPECT_DOUBLE_EQ(costs.bubble, static_cast<double>(ranks - 1) / static_cast<double>(micros + ranks - 1));
    for (int64_t rank = 0; rank < ranks; ++rank) EXPECT_EQ(costs.live[rank], std::min(micros, ranks - rank));
  });
}

TEST(PipelineSchedule, InterleavedWaitsForOneStageOfMany) {
  for_all_sizes([](int64_t ranks, int64_t chunks, int64_t micros) {
    const PipelineSchedule schedule = make_schedule(Schedule::kInterleaved1F1B, ranks, ranks * chunks, micros);
    const int64_t capacity = link_capacity(schedule, ranks * chunks, micros);
    const ScheduleCosts costs = simulate(schedule, ranks * chunks, micros, capacity);

    EXPECT_LE(capacity, 3);
    const int64_t group = (micros + std::max<int64_t>(1, micros / ranks) - 1) / std::max<int64_t>(1, micros / ranks);
    const int64_t most = chunks == 1 ? ranks : 2 * ranks - 1 + (chunks - 1) * group;
    EXPECT_LE(costs.live[0], std::min(most, chunks * micros));
    const double shortest = 3.0 * static_cast<double>(chunks * micros + ranks - 1);
    if (micros % ranks == 0) EXPECT_EQ(capacity, 1);
    if (micros % ranks == 0) EXPECT_EQ(costs.time, shortest);
    if (micros >= ranks) EXPECT_LE(costs.time, 1.17 * shortest);
  });
}

TEST(PipelineSchedule, ForwardAloneEndsToo) {
  for_all_sizes([](int64_t ranks, int64_t chunks, int64_t micros) {
    const ScheduleCosts costs = simulate(make_forward_schedule(ranks, ranks * chunks, micros), ranks * chunks, micros);
    if (micros % ranks == 0 || chunks == 1) EXPECT_EQ(costs.time, chunks * micros + ranks - 1);
  });
}

TEST(PipelineSchedule, TheSimulatorFindsWhatIsWrong) {
  const auto said = [](const PipelineSchedule& schedule, int64_t stages, int64_t micros) {
    return message_of([&] { simulate(schedule, stages, micros); });
  };
  constexpr Pass kF = Pass::kForward, kB = Pass::kBackward;

  EXPECT_THAT(said({{{kF, 0, 0}, {kB, 0, 0}}, {{kF, 1, 0}}}, 2, 1), HasSubstr("3 calls where 4 are required"));
  EXPECT_THAT(said({{{kF, 0, 0}, {kF, 0, 0}}, {}}, 2, 1), HasSubstr("F0.0 is made twice"));
  EXPECT_THAT(said({{{kF, 1, 0}}, {{kF, 0, 0}}}, 2, 1), HasSubstr("F1.0 does not belong on rank 0"));
  EXPECT_THAT(said({{{kF, 0, 1}, {kF, 0, 0}}, {{kF, 1, 0}, {kF, 1, 1}}}, 2, 2),
              HasSubstr("F1.0 gets the message for F1.1"));
  EXPECT_THAT(said({{{kB, 0, 0}, {kF, 0, 0}}}, 1, 1), HasSubstr("B0.0 comes before its forward pass"));
  EXPECT_THAT(said({{{kF, 1, 0}, {kF, 0, 0}}}, 2, 1), HasSubstr("F1.0 comes before its neighbour"));
  // Rank 0 has two messages under way before rank 1, which waits for a third, takes one.
  EXPECT_THAT(
      said({{{kF, 0, 0}, {kF, 0, 1}, {kB, 0, 0}, {kB, 0, 1}}, {{kF, 1, 0}, {kB, 1, 1}, {kF, 1, 1}, {kB, 1, 0}}}, 2, 2),
      HasSubstr("B1.1 comes before its forward pass"));
  EXPECT_THAT(
      said({{{kF, 0, 0}, {kF, 2, 0}, {kF, 0, 1}, {kF, 2, 1}}, {{kF, 1, 0}, {kF, 1, 1}, {kF, 3, 0}, {kF, 3, 1}}}, 4, 2),
      HasSubstr("gets the message for"));
}

TEST(PipelineSchedule, RanksThatWaitForEachOtherAreFound) {
  constexpr Pass kF = Pass::kForward, kB = Pass::kBackward;
  // Rank 0 needs the gradient of micro-batch 0 before it sends micro-batch 1, rank 1 needs 1 before it gives that
  // of 0.
  const PipelineSchedule schedule = {{{kF, 0, 0}, {kB, 0, 0}, {kF, 0, 1}, {kB, 0, 1}},
                                     {{kF, 1, 0}, {kF, 1, 1}, {kB, 1, 0}, {kB, 1, 1}}};
  EXPECT_THAT(message_of([&] { simulate(schedule, 2, 2); }),
              HasSubstr("ranks wait for each other\n  have  rank 0 in B0.0; rank 1 in F1.1"));
}

TEST(PipelineSchedule, RefusesWhatCannotBe) {
  const auto said = [](Schedule schedule, int64_t ranks, int64_t stages, int64_t micros) {
    return message_of([=] { make_schedule(schedule, ranks, stages, micros); });
  };
  EXPECT_THAT(said(Schedule::kGPipe, 2, 3, 4), HasSubstr("3 stages cannot be shared out evenly among 2 ranks"));
  EXPECT_THAT(said(Schedule::kGPipe, 2, 2, 0), HasSubstr("0 micro-batches"));
  EXPECT_THAT(said(Schedule::k1F1B, 2, 4, 4),
              HasSubstr("\"1f1b\" has one stage on each rank\n  have  4 stages, 2 ranks"));
  EXPECT_THAT(message_of([] { parse_schedule("1f2b"); }), HasSubstr("unknown schedule \"1f2b\"; did you mean '1f1b'"));
  EXPECT_EQ(parse_schedule(name(Schedule::kInterleaved1F1B)), Schedule::kInterleaved1F1B);
}

}  // namespace
}  // namespace moonhalo::testing::test_pipeline_schedule
