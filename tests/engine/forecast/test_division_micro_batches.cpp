// SPDX-License-Identifier: Apache-2.0
// Searches for the number of micro-batches, on machines that were made so that the best one is known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "moonhalo/engine/forecast/search/division_search.h"
#include "tests/support/divided_nets.h"
#include "tests/support/oracle.h"
#include "tests/support/planted_search.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_division_micro_batches {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fate = DivisionResult::Fate;

constexpr int64_t kSamples = 1920;

SearchOptions options_for(double network, double launch, std::vector<int64_t> micro_batches) {
  SearchOptions options;
  options.space = {.ranks = 4, .most_stages = 4, .samples = kSamples, .micro_batches = std::move(micro_batches)};
  options.machine = machine_of(1e12, 1e15, network, 1e-6);
  options.machine.device.launch = launch;
  options.backend = "nccl";
  return options;
}

TEST(DivisionMicroBatches, X14_EveryNumberIsADivisionOfTheSpace) {
  const DivisionSpace space{.ranks = 2, .most_stages = 2, .samples = 8, .micro_batches = {1, 8}, .may_store = false};
  const std::vector<Division> all = divisions_of(space);
  // A micro-batch of one sample has one data rank.
  EXPECT_THAT(all, ElementsAre(Division{.data = 2}, Division{.stages = 2}, Division{.stages = 2, .micro_batches = 8}));
  EXPECT_EQ(all.back().text(), "stages 2, micro-batches 8");
  EXPECT_EQ(all.back().ranks(), 2);
  for (const std::vector<int64_t>& wrong : {std::vector<int64_t>{1, 3}, {0}}) {
    DivisionSpace other = space;
    other.micro_batches = wrong;
    EXPECT_THAT(message_of([&] { divisions_of(other); }),
                AllOf(HasSubstr("micro-batches are not equal parts of the samples of a step"), HasSubstr("samples 8")));
  }
}

TEST(DivisionMicroBatches, X14_OneRankAndOneDivisionAreNotSeveral) {
  SearchOptions options = options_for(1e8, 2e-5, {1});
  options.space.ranks = 1;
  const BuildDivided build = build_chain({.batch = 8, .width = 8, .blocks = 1});
  EXPECT_THAT(to_text(search_divisions(options, build)), HasSubstr("search: 1 division of 1 rank of "));
  options.memory_limit = 1;
  EXPECT_THAT(message_of([&] { search_divisions(options, build); }),
              HasSubstr("search: no division of 1 rank fits into 1 byte a rank"));
}

// More micro-batches leave stages less to wait for, and cost the start of each operator. The links are so slow that
// gradients are not summed over data ranks.
TEST(DivisionMicroBatches, X14_TheBestNumberIsFoundBetweenWaitingAndStarts) {
  const DividedChain chain{.batch = kSamples, .width = 64, .blocks = 4};
  SearchOptions options = options_for(1e8, 2e-5, {1, 4, 16});
  const SearchResult found = search_divisions(options, build_chain(chain));
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_chain(chain));

  SCOPED_TRACE(to_text(found) + to_text(all));
  EXPECT_EQ(found.best(), all.best());
  EXPECT_LT(found.dry_runs, all.dry_runs);
  EXPECT_GT(found.best().stages, 1);
  EXPECT_GT(found.best().micro_batches, 1);
  EXPECT_LT(found.best().micro_batches, 16);
  EXPECT_EQ(parse_search(to_json(found)).best(), found.best());
  EXPECT_THAT(to_text(found), HasSubstr("micro-batches " + std::to_string(found.best().micro_batches)));
  for (const DivisionResult& one : all.ranked) {
    EXPECT_LE(one.bound.step, one.step * (1 + 1e-9)) << one.division.text();
    EXPECT_LE(one.bound.memory, one.memory) << one.division.text();
  }
}

// Where operators start at once, p stages wait for p - 1 of the m + p - 1 parts of a step.
TEST(DivisionMicroBatches, X14_TheWaitOfAPipelineFallsWithTheirNumber) {
  const DividedChain chain{.batch = kSamples, .width = 64, .blocks = 8};
  SearchOptions options = options_for(1e15, 0, {1, 4, 16});
  options.machine.levels.front().latency = 0;
  options.prunes = false;
  const SearchResult found = search_divisions(options, build_chain(chain));

  SCOPED_TRACE(to_text(found));
  const double even = of_division(found, {.data = 4}).step;
  for (const int64_t micros : {1, 4, 16}) {
    const double wait = static_cast<double>(micros + 3) / static_cast<double>(micros);
    EXPECT_NEAR(of_division(found, {.stages = 4, .micro_batches = micros}).step / even, wait, 0.04 * wait) << micros;
  }
}

// Activations of one micro-batch are there at a time where there is one stage.
TEST(DivisionMicroBatches, X14_MoreOfThemAreTakenWhereMemoryIsShort) {
  const DividedChain chain{.batch = kSamples, .width = 64, .blocks = 16};
  SearchOptions options = options_for(1e12, 1e-5, {1, 2, 4, 8});
  options.space.most_stages = 1;
  options.space.may_store = false;
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_chain(chain));
  options.prunes = true;
  options.memory_limit = (of_division(all, {.data = 4, .micro_batches = 2}).memory +
                          of_division(all, {.data = 4, .micro_batches = 4}).memory) /
                         2;
  const SearchResult limited = search_divisions(options, build_chain(chain));

  SCOPED_TRACE(to_text(all) + to_text(limited));
  EXPECT_EQ(all.best().micro_batches, 1);
  EXPECT_EQ(limited.best().micro_batches, 4);
  EXPECT_LE(limited.ranked.front().memory, options.memory_limit);
  EXPECT_EQ(of_division(limited, {.data = 4, .micro_batches = 2}).fate, Fate::kTooLarge);
}

// Real steps of the divisions that are measured are those of the forecast.
TEST(DivisionMicroBatches, X14_TheBestNumbersAreMeasured) {
  const DividedChain chain{.batch = 96, .width = 16, .blocks = 4};
  on_ranks(2, [&](Communicator& world) {
    SearchOptions options = options_for(1e8, 1e-6, {1, 2, 4});
    options.space.ranks = 2;
    options.space.samples = chain.batch;
    options.measure = 3;
    const SearchResult found = search_divisions(world, options, build_chain(chain));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(found.ranked[i].measured.has_value()) << to_text(found);
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_division_micro_batches
