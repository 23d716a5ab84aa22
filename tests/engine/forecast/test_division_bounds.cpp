// SPDX-License-Identifier: Apache-2.0
// Bounds of divisions against the clocks, from tapes made by hand and from dry runs.
#include "moonhalo/engine/forecast/search/division_bounds.h"

#include <gtest/gtest.h>

#include "moonhalo/engine/base/splitmix.h"
#include "moonhalo/engine/forecast/clocks.h"
#include "moonhalo/engine/forecast/search/division_search.h"
#include "tests/support/divided_nets.h"
#include "tests/support/tape_by_hand.h"

namespace moonhalo::testing::test_division_bounds {
namespace {

/// Numbers that are the same in each run.
class Drawn {
 public:
  explicit Drawn(uint64_t seed) : seed_(seed << 32) {}
  int64_t below(int64_t most) { return static_cast<int64_t>(splitmix64(seed_++) % static_cast<uint64_t>(most)); }
  template <typename Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[below(std::ssize(values))];
  }

 private:
  uint64_t seed_;
};

/// Hosts of few cores, of many, and devices.
Machine drawn_machine(Drawn& draw) {
  Machine machine;
  machine.name = "drawn";
  machine.measured = true;
  machine.device.kind = draw.one_of({"cpu", "cpu", "cuda"});
  machine.device.flops["product"][""] = TapeByHand::kRate;
  machine.device.bandwidth = {{1e5, 1e10}, {1e12, 1e9}};
  machine.device.launch = draw.one_of({0.0, 1e-5});
  machine.device.jitter = draw.one_of({0.0, 0.02});
  machine.host.cores = draw.one_of({1, 2, 3, 8});
  machine.host.slice = draw.one_of({0.0, 4e-3});
  machine.neighbours[2] = {{"stream", 0.8}, {"product", 1.3}};
  machine.levels = {
      {.name = "all", .latency = 3e-6, .bandwidth = draw.one_of({1e6, 1e9}), .shared = draw.below(2) == 0}};
  if (draw.below(2) == 0)
    machine.levels.insert(
        machine.levels.begin(),
        {.name = "host", .ranks = 2, .latency = 1e-6, .bandwidth = 1e10, .shared = draw.below(2) == 0});
  for (const char* backend : {"threads", "tcp", "nccl"}) {
    for (const int64_t ranks : {2, 3}) {
      if (draw.below(2) == 0) machine.verbs[backend][ranks]["all_reduce"] = {{4, 2e-5}, {1e5, 1e-4}, {1e6, 1.1e-4}};
    }
  }
  return machine;
}

/// Ranks with works of their own between collectives of all or of halves, and messages around a ring.
std::vector<TapeByHand> drawn_tapes(Drawn& draw, int64_t ranks) {
  std::vector<TapeByHand> tapes;
  for (int64_t rank = 0; rank < ranks; ++rank) tapes.emplace_back(rank, ranks);
  for (int part = 0; part < 8; ++part) {
    const int64_t call = draw.below(4), bytes = int64_t{1} << draw.below(22);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      TapeByHand& tape = tapes[rank];
      tape.compute(1e-4 * static_cast<double>(draw.below(100))).copy(1 + draw.below(1 << 20));
      const int64_t half = ranks / 2, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
      std::vector<int64_t> members;
      for (int64_t i = 0; i < (call == 1 && ranks % 2 == 0 ? half : ranks); ++i)
        members.push_back(call == 1 && ranks % 2 == 0 ? rank / half * half + i : i);
      if (call < 2) tape.verb(Verb::kAllReduce, members, bytes);
      if (call == 2) tape.verb(Verb::kAllGather, members, bytes);
      if (call < 3) continue;
      tape.exchange({{static_cast<int32_t>(next - rank), bytes}}, {{static_cast<int32_t>(before - rank), bytes}});
      tape.compute(1e-4 * static_cast<double>(draw.below(100))).wait();
    }
  }
  return tapes;
}

TEST(DivisionBounds, X14_IsNotAboveTheClocks) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Drawn draw(seed);
    const Machine machine = drawn_machine(draw);
    const std::string backend = draw.one_of({"threads", "tcp", "mpi", "nccl"});
    const std::vector<TapeByHand> tapes = drawn_tapes(draw, draw.one_of({2, 3, 4, 6}));
    const double step = forecast_step(machine, own_kinds(tapes), backend).step;
    for (const TapeByHand& tape : tapes) {
      const DivisionBound bound = least_step(machine, backend, tape.tape());
      EXPECT_LE(bound.step, step * (1 + 1e-9)) << backend << ", seed " << seed << ", rank " << tape.tape().rank;
      EXPECT_EQ(bound.step, bound.computing + bound.messages + bound.waiting);
      EXPECT_EQ(bound.rank, tape.tape().rank);
      EXPECT_GT(bound.step, 0);
    }
  }
}

// Ranks that do the same wait for no one but by jitter. Messages of some exchanges are hidden behind the operators, of
// others they take longer, and a second one waits for the link.
TEST(DivisionBounds, X14_IsTheStepOfRanksThatDoTheSame) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Drawn draw(seed);
    Machine machine = drawn_machine(draw);
    machine.host.cores = 4;
    TapeByHand rank(0, 4);
    for (int part = 0; part < 4; ++part) {
      rank.compute(1e-3).copy(draw.below(1 << 20)).verb(Verb::kAllReduce, first_ranks(4), 1 << draw.below(20));
      for (int exchange = 0; exchange < 2; ++exchange) {
        const int64_t bytes = int64_t{1} << draw.below(22);
        rank.exchange({{1, bytes}}, {{1, bytes}});
      }
      rank.compute(1e-4 * static_cast<double>(draw.below(100)));
      rank.wait(rank.last_exchange() - 1).compute(1e-4 * static_cast<double>(draw.below(10))).wait();
    }
    for (const char* backend : {"threads", "nccl"}) {
      const StepForecast forecast = forecast_step(machine, one_kind(rank, 4), backend);
      const DivisionBound bound = least_step(machine, backend, rank.tape());
      EXPECT_NEAR(bound.step / forecast.step, 1, 1e-9) << backend << ", seed " << seed;
      EXPECT_NEAR(bound.computing / forecast.computing, 1, 1e-9) << backend << ", seed " << seed;
      EXPECT_NEAR(bound.messages, forecast.messages, 1e-9 * forecast.step) << backend << ", seed " << seed;
      EXPECT_NEAR(bound.waiting, forecast.waiting, 1e-9 * forecast.step) << backend << ", seed " << seed;
    }
  }
}

// Events that a tape lacks at its end would only add to its time.
TEST(DivisionBounds, X14_HoldsForTheBeginningOfATape) {
  Drawn draw(7);
  const Machine machine = drawn_machine(draw);
  Tape tape = drawn_tapes(draw, 4)[1].tape();
  for (double later = least_step(machine, "nccl", tape).step; !tape.events.empty(); tape.events.pop_back()) {
    const double step = least_step(machine, "nccl", tape).step;
    EXPECT_LE(step, later * (1 + 1e-12));
    later = step;
  }
}

// Few samples and large weights: products bring the samples together rather than to sum gradients, or to gather
// weights.
TEST(DivisionBounds, X14_HoldForDrawnModels) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Drawn draw(seed);
    SearchOptions options;
    options.prunes = false;
    options.machine = drawn_machine(draw);
    options.backend = draw.one_of({"threads", "tcp", "nccl"});
    options.space.ranks = draw.one_of({2, 3, 4});
    const DividedChain chain{.batch = draw.one_of({1, 2, 4, 64}), .width = draw.one_of({8, 64, 160}), .blocks = 2};
    const DividedNet net{.batch = draw.one_of({1, 2, 5}), .hidden = draw.one_of({4, 48}), .kernel = 3, .height = 6};
    for (const BuildDivided& build : {build_chain(chain), build_divided(net)}) {
      const SearchResult all = search_divisions(options, build);
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + options.backend + "\n" + to_text(all));
      for (const DivisionResult& one : all.ranked) {
        EXPECT_LE(one.bound.step, one.step * (1 + 1e-9)) << one.division.text();
        EXPECT_LE(one.bound.memory, one.memory) << one.division.text();
      }
      options.space.most_rows = net.height;
      options.space.most_tensor = options.space.ranks;
    }
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_division_bounds
