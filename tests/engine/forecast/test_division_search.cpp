// SPDX-License-Identifier: Apache-2.0
// Searches of machines that were made so that the best division is known.
#include "moonhalo/engine/forecast/search/division_search.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/profile/memory.h"
#include "tests/support/divided_nets.h"
#include "tests/support/oracle.h"
#include "tests/support/planted_search.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_division_search {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fate = DivisionResult::Fate;

struct Planted {
  const char* name;
  Machine machine;
  DividedNet net;
  bool (*is_right)(const Division&);
  const char* backend = "nccl";
};

std::vector<Planted> planted() {
  return {
      // 1.6 kB of parameters, and a message takes 0.1 ms whatever it has: one sum a step is the least. Stored
      // parameters
      // are gathered besides, and each convolution fetches edges or sums 220 kB of activations.
      {"data",
       machine_of(1e9, 1e11, 1e8, 1e-4),
       {.batch = 12, .channels = 2, .hidden = 4, .kernel = 5, .height = 48, .width = 48},
       [](const Division& best) { return best.data == best.ranks() && !best.is_stored; }},
      // One sample: data ranks do not divide 70 ms of work. Edges have 50 kB on two ranks, and are computed twice in
      // 1 ms; sums of activations have 590 kB, 6 ms.
      {"domain",
       machine_of(1e10, 1e11, 1e8, 1e-5),
       {.kernel = 5, .height = 192, .width = 192},
       [](const Division& best) { return best.rows * best.columns == best.ranks(); }},
      // 786 kB of parameters, 16 kB of activations: sums of gradients take 8 ms, of activations 0.2.
      {"tensor",
       machine_of(1e11, 1e10, 1e8, 1e-6),
       {.channels = 64, .hidden = 1536, .kernel = 1, .height = 8, .width = 8},
       [](const Division& best) { return best.tensor == best.ranks(); }},
      // Memory is slow, so AdamW's passes over copies of 5 MB cost more than gathers. Sums of activations would have
      // all features of all samples.
      {"stored",
       machine_of(1e13, 1e9, 1e11, 1e-7),
       {.batch = 96, .channels = 768, .hidden = 768, .kernel = 1, .height = 4, .width = 4},
       [](const Division& best) { return best.data == best.ranks() && best.is_stored; }},
  };
}

SearchOptions options_for(const Planted& one, int64_t ranks) {
  SearchOptions options;
  options.space = {.ranks = ranks, .most_rows = one.net.height, .most_columns = one.net.width, .most_tensor = ranks};
  options.machine = one.machine;
  options.backend = one.backend;
  return options;
}

// Dry runs of all divisions find no better one, and no bound is above what they find.
void expect_best_of_all(const Planted& one, int64_t ranks) {
  SearchOptions options = options_for(one, ranks);
  const SearchResult found = search_divisions(options, build_divided(one.net));
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_divided(one.net));
  SCOPED_TRACE(to_text(found) + to_text(all));

  EXPECT_TRUE(one.is_right(found.best())) << found.best().text();
  EXPECT_EQ(found.best(), all.best());
  EXPECT_EQ(of_division(all, found.best()).step / all.ranked.front().step, 1.0) << "regret by the clocks";
  EXPECT_EQ(all.dry_runs, std::ssize(all.ranked));
  ASSERT_EQ(found.ranked.size(), all.ranked.size());
  for (const DivisionResult& result : all.ranked) {
    EXPECT_LE(result.bound.step, result.step * (1 + 1e-9)) << result.division.text();
    EXPECT_LE(result.bound.memory, result.memory) << result.division.text();
    EXPECT_GE(result.step, all.ranked.front().step);
  }
}

// A bound is that of a dry run of rank 0, which the forecast of the same division uses again.
TEST(DivisionSearch, X14_EachRankOfADivisionIsDryRunOnce) {
  const Planted one = planted()[1];
  const BuildDivided build = build_divided(one.net);
  std::map<std::pair<std::string, int>, int> builds;
  const SearchResult found = search_divisions(options_for(one, 4), [&](const Division& division, Communicator& world) {
    ++builds[{division.text(), world.rank()}];
    return build(division, world);
  });
  EXPECT_GE(found.dry_runs, 1);
  EXPECT_GE(builds.size(), found.ranked.size());
  for (const auto& [of, times] : builds) {
    EXPECT_EQ(times, 1) << of.first << ", rank " << of.second;
  }
}

// The memory of its dry runs is not there.
TEST(DivisionSearch, X14_TheProgramsCountIsOfRealMemory) {
  const MemoryCount counted;
  const Planted one = planted().back();
  const SearchOptions options = options_for(one, 2);
  const BuildDivided build = build_divided(one.net);
  const at::Tensor before = at::empty({1024});
  const MemoryUse at_start = memory_use();

  search_divisions(options, build);

  constexpr int64_t kOfSmallTensors = int64_t{1} << 20;  // parameters and gradients have 9.4 MB
  EXPECT_NEAR(memory_use().live, at_start.live, kOfSmallTensors);
  EXPECT_LT(memory_use().peak, at_start.peak + kOfSmallTensors);
}

TEST(DivisionSearch, X14_PlantedMachinesGiveTheReckonedDivision) {
  for (const Planted& one : planted()) {
    for (const int64_t ranks : {2, 3, 4}) {
      SCOPED_TRACE(std::string(one.name) + " on " + std::to_string(ranks));
      expect_best_of_all(one, ranks);
    }
  }
}

// Measured collectives, of which long ones are faster; cores that work faster side by side; fewer cores than ranks.
TEST(DivisionSearch, X14_BoundsHoldOnMeasuredHosts) {
  Planted host{"host",
               machine_of(1e9, 1e9, 1e10, 1e-6),
               {.batch = 4, .channels = 32, .hidden = 64},
               [](const Division&) { return true; },
               "threads"};
  host.machine.device.kind = "cpu";
  host.machine.host.cores = 2;
  host.machine.device.bandwidth = {{1e5, 4e9}, {1e12, 1e9}};
  host.machine.neighbours[2] = {{"stream", 0.8}, {"convolution", 0.9}};
  for (const char* verb : {"all_reduce", "all_gather", "reduce_scatter", "exchange"})
    host.machine.verbs["threads"][2][verb] = {{4, 1e-6}, {1e5, 1e-4}, {2e5, 1.1e-4}};
  for (const int64_t ranks : {2, 4}) expect_best_of_all(host, ranks);
}

// A block of a field that stays after each step is not a state of the optimizer, which copies would hold whole.
TEST(DivisionSearch, X14_BoundsHoldWhereStepsKeepFields) {
  const Planted data = planted()[0];
  const BuildDivided build = [&](const Division& division, Communicator& world) {
    BuiltStep built = build_divided(data.net)(division, world);
    const auto kept = std::make_shared<at::Tensor>();
    built.step = [step = built.step, kept, size = (int64_t{1} << 20) / division.ranks()] {
      step();
      *kept = at::ones({size});
    };
    return built;
  };
  SearchOptions options = options_for(data, 4);
  options.prunes = false;

  for (const DivisionResult& one : search_divisions(options, build).ranked)
    EXPECT_LE(one.bound.memory, one.memory) << one.division.text();
}

TEST(DivisionSearch, X14_BoundsSpareDryRuns) {
  const Planted tensor = planted()[2];

  const SearchResult found = search_divisions(options_for(tensor, 4), build_divided(tensor.net));

  EXPECT_LT(found.dry_runs, std::ssize(found.ranked));
  const auto slow = std::find_if(found.ranked.begin(), found.ranked.end(),
                                 [](const DivisionResult& one) { return one.fate == Fate::kSlowBound; });
  ASSERT_NE(slow, found.ranked.end());
  EXPECT_GT(slow->bound.step, found.ranked.front().step);
  EXPECT_THAT(slow->why, HasSubstr("which rank 0 takes alone: computing"));
  EXPECT_THAT(to_text(found), HasSubstr("the fastest forecast: computing"));
}

TEST(DivisionSearch, X14_ALimitOfMemoryChangesTheBest) {
  const Planted data = planted()[0];
  SearchOptions options = options_for(data, 4);
  const SearchResult free = search_divisions(options, build_divided(data.net));
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_divided(data.net));
  options.prunes = true;
  options.memory_limit = free.ranked.front().memory - 1;

  const SearchResult limited = search_divisions(options, build_divided(data.net));

  // The fastest of those that fit, by dry runs of all.
  const auto expected = std::find_if(all.ranked.begin(), all.ranked.end(),
                                     [&](const DivisionResult& one) { return one.memory <= options.memory_limit; });
  ASSERT_NE(expected, all.ranked.end()) << to_text(all);
  EXPECT_EQ(limited.best(), expected->division) << to_text(limited);
  EXPECT_NE(limited.best(), free.best());
  EXPECT_EQ(of_division(limited, free.best()).fate, Fate::kTooLarge);
  EXPECT_THAT(of_division(limited, free.best()).why, HasSubstr("needs "));
  options.memory_limit = 100;
  EXPECT_THAT(message_of([&] { search_divisions(options, build_divided(data.net)); }),
              AllOf(HasSubstr("search: no division of 4 ranks fits into 100 bytes a rank"),
                    HasSubstr("parameters, gradients and states alone need")));
}

// Samples alone are cut, so that there is one division, and the same one that recomputes.
SearchOptions options_for_chain(const DividedChain& chain) {
  SearchOptions options;
  options.space = {.ranks = 2, .may_store = false, .may_recompute = true};
  options.space.most_data = chain.batch;
  options.machine = machine_of(1e9, 1e11, 1e8, 1e-4);
  options.backend = "nccl";
  return options;
}

TEST(DivisionSearch, X14_RecomputationIsTriedWhereTheSameDivisionIsTooLarge) {
  const DividedChain chain{.batch = 4096, .blocks = 6};
  SearchOptions options = options_for_chain(chain);
  const SearchResult free = search_divisions(options, build_chain(chain));
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_chain(chain));
  options.prunes = true;
  const DivisionResult kept = of_division(all, {.data = 2}), again = of_division(all, {.data = 2, .recomputes = true});
  options.memory_limit = (kept.memory + again.memory) / 2;

  const SearchResult limited = search_divisions(options, build_chain(chain));

  SCOPED_TRACE(to_text(free) + to_text(all) + to_text(limited));
  EXPECT_GT(again.step, 1.1 * kept.step) << "forward is a third of the step";
  EXPECT_LT(static_cast<double>(again.memory), 0.7 * static_cast<double>(kept.memory));
  EXPECT_EQ(free.best(), kept.division);
  EXPECT_EQ(free.dry_runs, 1);
  EXPECT_EQ(of_division(free, again.division).fate, Fate::kNotNeeded);
  EXPECT_THAT(of_division(free, again.division).why, HasSubstr("never faster than the same one that keeps"));
  EXPECT_THAT(to_text(free), HasSubstr("1 more recomputes: never faster than the same one that"));
  EXPECT_EQ(limited.best(), again.division);
  EXPECT_EQ(limited.ranked.front().step, again.step);
  EXPECT_EQ(of_division(limited, kept.division).fate, Fate::kTooLarge);
  EXPECT_EQ(parse_search(to_json(limited)).best(), again.division);
}

// Memory of real steps, of which those without recomputation do not fit. A rank thread may free what the other has
// asked for, so both count together.
TEST(DivisionSearch, X14_TheDivisionThatRecomputesRunsWithinTheLimit) {
  const DividedChain chain{.batch = 4096, .blocks = 6};
  SearchOptions options = options_for_chain(chain);
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_chain(chain));
  options.prunes = true;
  options.memory_limit = (all.ranked.front().memory + all.ranked.back().memory) / 2;
  options.measure = 1;
  const std::vector<Division> divisions{{.data = 2}, {.data = 2, .recomputes = true}};
  std::vector<std::vector<int64_t>> peaks(2, std::vector<int64_t>(2));
  const MemoryCount counted;
  on_ranks(2, [&](Communicator& world) {
    const SearchResult found = search_divisions(world, options, build_chain(chain));
    EXPECT_EQ(found.best(), divisions[1]);
    EXPECT_TRUE(found.ranked.front().measured.has_value());
    for (size_t i = 0; i < divisions.size(); ++i) {
      const MemoryPeak within;
      const BuiltStep built = build_chain(chain)(divisions[i], world);
      for (int step = 0; step < 3; ++step) built.step();
      peaks[i][world.rank()] = within.use().peak - within.live_at_start();
    }
  });
  for (size_t i = 0; i < divisions.size(); ++i) {
    const auto peak = static_cast<double>(peaks[i][0] + peaks[i][1]) / 2;
    EXPECT_EQ(peak <= static_cast<double>(options.memory_limit), i == 1) << divisions[i].text() << ": " << peak;
    EXPECT_NEAR(peak, static_cast<double>(of_division(all, divisions[i]).memory), 0.03 * peak) << divisions[i].text();
  }
}

// Bounds exclude a division that recomputes with the same one that does not.
TEST(DivisionSearch, X14_BoundsHoldForDivisionsThatRecompute) {
  const Planted tensor = planted()[2];
  SearchOptions options = options_for(tensor, 4);
  const SearchResult plain = search_divisions(options, build_divided(tensor.net));
  options.space.may_recompute = true;

  const SearchResult found = search_divisions(options, build_divided(tensor.net));

  SCOPED_TRACE(to_text(found));
  EXPECT_EQ(found.best(), plain.best());
  EXPECT_EQ(found.dry_runs, plain.dry_runs);
  ASSERT_EQ(found.ranked.size(), 2 * plain.ranked.size());
  for (const DivisionResult& kept : plain.ranked) {
    Division again = kept.division;
    again.recomputes = true;
    EXPECT_EQ(of_division(found, again).fate, kept.fate == Fate::kForecast ? Fate::kNotNeeded : kept.fate);
  }
}

// 2.1 MB of parameters, whose gradients take 16 ms to sum over four ranks; 41 kB go from stage to stage for each
// micro-batch, in 0.4 ms. The work is 0.5 ms a rank.
struct PlantedPipeline {
  DividedChain chain{.batch = 160, .width = 64, .blocks = 16, .micros = 4};
  SearchOptions options;
  PlantedPipeline() {
    options.space = {.ranks = 4, .most_stages = 4};
    options.machine = machine_of(1e12, 1e15, 1e8, 1e-6);
    options.backend = "nccl";
  }
};

TEST(DivisionSearch, X14_APipelineIsTheBestWhereLinksAreSlow) {
  const PlantedPipeline slow;
  SearchOptions options = slow.options;
  const SearchResult found = search_divisions(options, build_chain(slow.chain));
  options.prunes = false;
  const SearchResult all = search_divisions(options, build_chain(slow.chain));

  SCOPED_TRACE(to_text(found) + to_text(all));
  EXPECT_EQ(found.best(), (Division{.stages = 4}));
  EXPECT_EQ(all.best(), found.best());
  EXPECT_THAT(to_text(found), HasSubstr("stages 2, data 2"));
  EXPECT_EQ(parse_search(to_json(found)).best(), found.best());
  for (const DivisionResult& one : all.ranked) {
    EXPECT_LE(one.bound.step, one.step * (1 + 1e-9)) << one.division.text();
    EXPECT_LE(one.bound.memory, one.memory) << one.division.text();
  }
}

// Messages and AdamW take no time here. A rank of p works m / (m + p - 1) of the step; the first stage does less, since
// its samples get no gradients.
TEST(DivisionSearch, X14_TheScheduleGivesTheWaitOfAPipeline) {
  PlantedPipeline fast;
  fast.options.prunes = false;
  fast.options.machine = machine_of(1e12, 1e15, 1e15, 0);
  for (const int64_t micros : {1, 4, 8}) {
    fast.chain.micros = micros;
    const SearchResult found = search_divisions(fast.options, build_chain(fast.chain));
    SCOPED_TRACE(to_text(found));
    const double even = of_division(found, {.data = 4}).step;
    for (const int64_t stages : {2, 4}) {
      const DivisionResult& one = of_division(found, {.data = 4 / stages, .stages = stages});
      const double wait = static_cast<double>(micros + stages - 1) / static_cast<double>(micros);
      EXPECT_NEAR(one.step / even, wait, 0.03 * wait) << one.division.text() << ", micro-batches: " << micros;
      EXPECT_NEAR(one.waiting / one.step, 1 - 1 / wait, 0.03) << one.division.text();
    }
  }
}

TEST(DivisionSearch, X14_TheBestPipelineIsMeasured) {
  const PlantedPipeline slow;
  on_ranks(4, [&](Communicator& world) {
    SearchOptions options = slow.options;
    options.measure = 2;
    const SearchResult found = search_divisions(world, options, build_chain(slow.chain));
    EXPECT_TRUE(found.ranked[0].measured && found.ranked[1].measured);
    EXPECT_TRUE(found.ranked[0].division.stages > 1 && found.ranked[1].division.stages > 1) << to_text(found);
  });
}

TEST(DivisionSearch, X14_AFailureNamesTheDivisionAndTheRank) {
  const Planted data = planted()[0];
  const BuildDivided build = [&](const Division& division, Communicator& world) {
    BuiltStep built = build_divided(data.net)(division, world);
    if (division.rows == 2 && world.rank() == 1) built.step = [] { TORCH_CHECK_VALUE(false, "no such rows"); };
    return built;
  };
  SearchOptions options = options_for(data, 2);
  options.prunes = false;

  EXPECT_THAT(message_of([&] { search_divisions(options, build); }),
              AllOf(HasSubstr("search: the dry run of 'rows 2' failed on rank 1 of 2, a simulated rank"),
                    HasSubstr("no such rows")));
  EXPECT_THAT(
      message_of([&] { search_divisions(options, [](const Division&, Communicator&) { return BuiltStep{}; }); }),
      HasSubstr("returned no step"));
}

TEST(DivisionSearch, X14_LeavesNothingBehind) {
  const Planted data = planted()[0];
  const at::Tensor shared = at::rand({64, 64}), before = shared.clone();
  const at::Tensor drawn = at::detail::getDefaultCPUGenerator().get_state();
  const BuildDivided build = [&](const Division& division, Communicator& world) {
    BuiltStep built = build_divided(data.net)(division, world);
    const auto step = built.step;
    built.step = [step, shared, draws = at::rand({4})] {
      at::rand({4}) + shared.sum();
      step();
    };
    return built;
  };

  search_divisions(options_for(data, 3), build);

  EXPECT_TRUE(at::equal(shared, before));
  EXPECT_FALSE(is_shard_tensor(shared));
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), drawn));
  EXPECT_TRUE(at::equal(at::ones({100, 100}), at::full({100, 100}, 1.0))) << "results are computed again";
}

TEST(DivisionSearch, X14_TheBestThreeAreMeasured) {
  const Planted data = planted()[0];
  for (const int ranks : {2, 3}) {
    std::vector<std::string> found(ranks);
    on_ranks(ranks, [&](Communicator& world) {
      SearchOptions options = options_for(data, ranks);
      options.measure = 3;
      const SearchResult result = search_divisions(world, options, build_divided(data.net));
      found[world.rank()] = to_json(result);
    });
    for (const std::string& one : found) EXPECT_EQ(one, found[0]);
    const SearchResult result = parse_search(found[0]);
    SCOPED_TRACE(to_text(result));
    for (size_t i = 0; i < result.ranked.size(); ++i) EXPECT_EQ(result.ranked[i].measured.has_value(), i < 3) << i;
    EXPECT_LE(*result.ranked[0].measured, *result.ranked[1].measured);
    EXPECT_LE(*result.ranked[1].measured, *result.ranked[2].measured);
    EXPECT_GT(*result.ranked[0].measured, 0);
    EXPECT_THAT(to_text(result), HasSubstr("measured times are those of this host, forecasts those of 'planted'"));
    EXPECT_THAT(result.ranked[0].why, HasSubstr("the fastest one measured"));
  }
}

// Without being asked, those that may be the fastest, where the machine is this host.
TEST(DivisionSearch, X14_CloseForecastsAreMeasuredOnThisHost) {
  const Planted data = planted()[0];
  on_ranks(2, [&](Communicator& world) {
    SearchOptions options = options_for(data, 2);
    options.machine = machine_of(1e15, 1e15, 1e15, 0);
    options.machine.host.cores = usable_core_count();
    options.prunes = false;
    const SearchResult here = search_divisions(world, options, build_divided(data.net));
    SCOPED_TRACE(to_text(here));
    double end = std::numeric_limits<double>::infinity();
    for (const DivisionResult& one : here.ranked) end = std::min(end, one.high);
    int64_t measured = 0;
    for (const DivisionResult& one : here.ranked) {
      measured += one.measured.has_value();
      EXPECT_TRUE(!one.measured || one.low <= end) << one.division.text();
    }
    EXPECT_GE(measured, 2);
    EXPECT_THAT(to_text(here), HasSubstr("times their forecasts"));
    EXPECT_LT(measured, std::ssize(here.ranked));
    ++options.machine.host.cores;
    for (const DivisionResult& one : search_divisions(world, options, build_divided(data.net)).ranked)
      EXPECT_FALSE(one.measured.has_value());
  });
}

TEST(DivisionSearch, X14_RanksThatAreNotThereAreNotMeasured) {
  const Planted data = planted()[0];
  on_ranks(2, [&](Communicator& world) {
    SearchOptions options = options_for(data, 3);
    options.measure = 1;
    EXPECT_THAT(message_of([&] { search_divisions(world, options, build_divided(data.net)); }),
                HasSubstr("search: divisions of 3 ranks cannot be measured on 2"));
    options.measure = 0;
    EXPECT_EQ(search_divisions(world, options, build_divided(data.net)).best().data, 3);
    options.machine.levels.front().bandwidth = 1e8;
    const BuildDivided fails = [](const Division&, Communicator&) -> BuiltStep {
      TORCH_CHECK_VALUE(false, "nothing to build");
    };
    EXPECT_THAT(message_of([&] { search_divisions(world, options, fails); }), HasSubstr("nothing to build"))
        << "on all ranks";
  });
}

TEST(Division, X14_AllWaysToShareOutRanks) {
  const auto texts = [](const DivisionSpace& space) {
    std::vector<std::string> all;
    for (const Division& one : divisions_of(space)) all.push_back(one.text());
    return all;
  };
  EXPECT_THAT(texts({.ranks = 4, .most_rows = 4, .most_columns = 2, .most_tensor = 2}),
              ElementsAre("data 4", "data 4, stored", "data 2, rows 2", "data 2, rows 2, stored", "data 2, columns 2",
                          "data 2, columns 2, stored", "data 2, tensor 2", "data 2, tensor 2, stored", "rows 4",
                          "rows 2, columns 2", "rows 2, tensor 2", "columns 2, tensor 2"));
  EXPECT_THAT(texts({.ranks = 3, .most_tensor = 8, .may_copy = false}), ElementsAre("data 3, stored", "tensor 3"));
  EXPECT_THAT(texts({.ranks = 1}), ElementsAre("one rank"));
  EXPECT_THAT(texts({.ranks = 2, .may_recompute = true}),
              ElementsAre("data 2", "data 2, recomputed", "data 2, stored", "data 2, stored, recomputed"));
  EXPECT_THAT(texts({.ranks = 4, .most_data = 2, .most_tensor = 2, .most_stages = 4}),
              ElementsAre("data 2, tensor 2", "data 2, tensor 2, stored", "stages 2, data 2", "stages 2, tensor 2",
                          "stages 4"));
  EXPECT_THAT(message_of([] { divisions_of({.ranks = 2, .most_stages = 0}); }), HasSubstr("search: numbers of ranks"));
  EXPECT_THAT(message_of([] { divisions_of({.ranks = 5, .most_data = 4}); }),
              AllOf(HasSubstr("search: there is no division of 5 ranks"), HasSubstr("stages 1, samples any"),
                    HasSubstr("more samples, rows, features or stages")));
  EXPECT_THAT(message_of([] { divisions_of({.ranks = 2, .most_rows = 0}); }),
              HasSubstr("search: numbers of ranks are at least 1"));
}

}  // namespace
}  // namespace moonhalo::testing::test_division_search
