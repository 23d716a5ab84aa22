// SPDX-License-Identifier: Apache-2.0
// Searches on ranks that are recorded: by a profile, by moonhalo plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/rank_kinds.h"
#include "moonhalo/engine/forecast/search/division_search.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/engine/pipeline/pipeline.h"
#include "moonhalo/engine/profile/memory.h"
#include "tests/support/divided_nets.h"
#include "tests/support/oracle.h"
#include "tests/support/planted_search.h"

namespace moonhalo::testing::test_unrecorded {
namespace {

using ::testing::ElementsAre;

const DividedNet kNet{.batch = 4, .channels = 2, .hidden = 4, .height = 8, .width = 8};

SearchOptions options_for(int64_t ranks) {
  SearchOptions options;
  options.space = {.ranks = ranks, .most_rows = 8};
  options.machine = machine_of(1e9, 1e11, 1e8, 1e-4);
  options.backend = "nccl";
  return options;
}

std::vector<std::string> names_of(const Tape& tape) {
  std::vector<std::string> names;
  for (const TapeEvent& event : tape.events) {
    if (const auto* call = std::get_if<TapeOperator>(&event.what)) names.push_back(tape.names.at(call->name));
  }
  return names;
}

TEST(Unrecorded, X14_ARecorderSeesNothingOfASearch) {
  const MemoryCount counted;
  const CommunicatorPtr world = make_fake_communicator(0, 2, nullptr);
  const SearchResult alone = search_divisions(options_for(2), build_divided(kNet));
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {2}, {"mine"});
  const SeenSpecs specs;
  std::vector<int64_t> steps;
  watch_steps(&steps, [&](int64_t ended) { steps.push_back(ended); });
  TapeRecorder recorder(*world);

  const at::Tensor before = at::ones({4000}).exp();
  const SearchResult found = search_divisions(options_for(2), build_divided(kNet));
  note_optimizer_step(&steps);
  make_spec(mesh, {3}, {shard(0)});
  const at::Tensor after = at::ones({3}).tanh();
  const Tape tape = recorder.take();
  watch_steps(&steps, nullptr);

  EXPECT_EQ(to_json(found), to_json(alone));
  EXPECT_THAT(names_of(tape), ElementsAre("aten::fill_", "aten::exp", "aten::fill_", "aten::tanh"));
  EXPECT_THAT(steps, ElementsAre(1));
  ASSERT_EQ(specs.meshes().size(), 1);
  EXPECT_THAT(specs.meshes()[0].names, ElementsAre("mine"));
}

// A rank runs the stages before its own to find what comes to it. The first one takes 8 MB.
TEST(Unrecorded, X14_StagesOfOtherRanksAreNotOfTheRank) {
  constexpr int64_t kSide = 512, kBytes = 4 * kSide * kSide;
  const CommunicatorPtr world = make_fake_communicator(2, 3);
  const FakeResults fakes;
  const MemoryCount counted;
  const at::Tensor weight = at::ones({kSide, kSide}), sample = at::ones({kSide, kSide});
  const Pipeline::Stage first = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0].repeat({8, 1}).narrow(0, 0, kSide).clone()};
  };
  const Pipeline::Stage stage = [&](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{at::mm(at::mm(in[0], weight), weight)};
  };
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {3}, {"pp"});
  Pipeline pipeline(mesh, "pp", {first, stage, stage}, {.micros = 2});
  TapeRecorder recorder(*world);

  pipeline.infer_step({{sample}, {sample}}, [](const std::vector<at::Tensor>& out, int64_t) { return out[0].mean(); });
  const Tape tape = recorder.take();

  const std::vector<std::string> names = names_of(tape);
  EXPECT_EQ(std::count(names.begin(), names.end(), "aten::mm"), 2 * 2);
  // The sample, the weight, what comes, and both products.
  EXPECT_NEAR(memory_use().peak, 5 * kBytes, 0.1 * kBytes);
  EXPECT_EQ(memory_use().peak, peak_of(tape).bytes);
}

TEST(Unrecorded, X14_ASearchThatFailsIsRecordedNoLonger) {
  const CommunicatorPtr world = make_fake_communicator(0, 2, nullptr);
  TapeRecorder recorder(*world);

  EXPECT_NE(message_of([] { search_divisions(options_for(2), [](auto&&...) { return BuiltStep{}; }); }), "");
  at::ones({3}).exp();

  EXPECT_THAT(names_of(recorder.take()), ElementsAre("aten::fill_", "aten::exp"));
}

TEST(Unrecorded, X14_SimulatedRanksShareOneSearch) {
  const auto facts = std::make_shared<RootFacts>();
  std::vector<int64_t> builds;
  std::vector<std::string> results;
  for (const int rank : {0, 3}) {
    const CommunicatorPtr world = make_fake_communicator(rank, 4, facts);
    int64_t count = 0;
    const BuildDivided build = [&](const Division& division, Communicator& within) {
      ++count;
      return build_divided(kNet)(division, within);
    };
    results.push_back(to_json(search_divisions(*world, options_for(4), build)));
    builds.push_back(count);
  }

  EXPECT_GT(builds[0], 0);
  EXPECT_EQ(builds[1], 0);
  EXPECT_EQ(results[1], results[0]);
}

}  // namespace
}  // namespace moonhalo::testing::test_unrecorded
