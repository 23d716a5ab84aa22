// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/rank_kinds.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <mutex>
#include <sstream>

#include "moonhalo/engine/base/splitmix.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/forecast/tape_recorder.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/engine/moonhalo.h"
#include "tests/bench/models.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_rank_kinds {
namespace {

struct Setting {
  std::vector<int64_t> grid;
  int64_t height, width;
};

template <typename Net>
void step(Net& net, torch::optim::AdamW& optimizer, const at::Tensor& x) {
  optimizer.zero_grad();
  net->forward(x).square().mean().backward();
  optimizer.step();
}

// Two steps of a model on a field in blocks; `before_second` runs between them.
template <typename Net>
void train(Net net, Communicator& world, const Setting& setting, const std::function<void()>& before_second) {
  const MeshPtr mesh = init_device_mesh(world, "cpu", setting.grid, {"rows", "columns"});
  parallelize_module(net.ptr(), mesh, {}, {.src_data_rank = std::nullopt});
  const SpecPtr spec = make_spec(mesh, {1, bench::kFieldChannels, setting.height, setting.width}, {shard(2), shard(3)});
  const at::Tensor x = from_local(at::ones(spec->local_shape()), spec);
  torch::optim::AdamW optimizer(net->parameters(), 1e-3);
  step(net, optimizer, x);
  before_second();
  step(net, optimizer, x);
}

template <typename Make>
std::vector<RankRun> dry_runs(const Make& make, const Setting& setting, const std::vector<int64_t>& ranks) {
  std::vector<RankRun> all;
  const auto size = static_cast<int>(setting.grid[0] * setting.grid[1]);
  for (const int64_t rank : ranks) {
    run_ranks(1, [&](Communicator&) {
      const MemoryCount counted;
      const FakeResults fakes;
      const SeenSpecs specs;
      const auto world = make_fake_communicator(static_cast<int>(rank), size);
      std::unique_ptr<TapeRecorder> recorder;
      train(make(), *world, setting, [&] { recorder = std::make_unique<TapeRecorder>(*world); });
      RankRun run;
      run.tape = recorder->take();
      run.meshes = specs.meshes();
      run.peak = memory_use().peak;
      all.push_back(std::move(run));
    });
  }
  return all;
}

template <typename Make>
RankKinds kinds_of(const Make& make, const Setting& setting) {
  return find_kinds(setting.grid[0] * setting.grid[1],
                    [&](const std::vector<int64_t>& ranks) { return dry_runs(make, setting, ranks); });
}

// Returns the counts of real rank threads in the second step.
template <typename Make>
std::vector<VerbCounts> sent_by_real_ranks(const Make& make, const Setting& setting) {
  const auto size = static_cast<int>(setting.grid[0] * setting.grid[1]);
  std::vector<VerbCounts> sent(size);
  on_ranks(size, [&](Communicator& world) {
    CommStats before;
    train(make(), world, setting, [&] { before = world.stats(); });
    for (size_t verb = 0; verb < sent[0].size(); ++verb) {
      const auto &a = world.stats().by_kind[verb], &b = before.by_kind[verb];
      sent[world.rank()][verb] = {a.calls - b.calls, a.messages - b.messages, a.bytes - b.bytes};
    }
  });
  return sent;
}

template <typename Make>
void expect_counts_of_real_ranks(const Make& make, const Setting& setting) {
  const RankKinds kinds = kinds_of(make, setting);
  const std::vector<VerbCounts> real = sent_by_real_ranks(make, setting);
  for (size_t rank = 0; rank < real.size(); ++rank) {
    SCOPED_TRACE(rank);
    const VerbCounts planned = counts_of(kinds.tapes.kinds[kinds.tapes.kind_of[rank]], static_cast<int64_t>(rank));
    for (size_t verb = 0; verb < planned.size(); ++verb)
      EXPECT_EQ(planned[verb], real[rank][verb]) << name(static_cast<Verb>(verb));
  }
}

TEST(RankKinds, X14_EveryRankSendsWhatARealOneSends) {
  for (const Setting& setting : {Setting{{2, 1}, 64, 32}, Setting{{3, 1}, 64, 32}, Setting{{2, 2}, 96, 64}}) {
    expect_counts_of_real_ranks([] { return bench::UNet(); }, setting);
    expect_counts_of_real_ranks([] { return bench::Fno(); }, setting);
  }
}

std::string text_of(const Tape& tape, const TapeEvent& event) {
  std::ostringstream text;
  text << place_text(tape, event.module, event.phase) << ": ";
  if (const auto* call = std::get_if<TapeOperator>(&event.what)) {
    text << tape.names.at(call->name) << " " << tape.names.at(call->key) << ", macs " << call->macs << ", bytes "
         << call->bytes << ", working set " << call->working_set;
  } else if (const auto* call = std::get_if<TapeVerb>(&event.what)) {
    text << name(call->verb) << " " << call->data << " bytes of " << tape.groups.at(call->group).size() << " ranks";
  } else if (const auto* call = std::get_if<TapeExchange>(&event.what)) {
    text << "exchange of " << tape.groups.at(call->group).size() << " ranks";
    for (const auto* list : {&call->sends, &call->receives}) {
      text << (list == &call->sends ? ", sends" : ", receives");
      for (const TapePart& part : *list) text << " " << part.offset << ":" << part.bytes;
    }
  } else if (const auto* block = std::get_if<TapeBlock>(&event.what)) {
    text << "block of " << block->bytes;
  } else {
    text << "wait";
  }
  return text.str();
}

// The first event that differs.
std::string first_difference(const Tape& a, const Tape& b) {
  if (a.live != b.live) return "live " + std::to_string(a.live) + " and " + std::to_string(b.live);
  for (size_t i = 0; i < std::min(a.events.size(), b.events.size()); ++i) {
    const std::string one = text_of(a, a.events[i]), other = text_of(b, b.events[i]);
    if (one != other) return "event " + std::to_string(i) + ": " + one + "\n        and: " + other;
  }
  return std::to_string(a.events.size()) + " and " + std::to_string(b.events.size()) + " events";
}

// Runs some of 64 ranks, and compares drawn others with their kinds.
template <typename Make>
RankKinds expect_kinds_stand_for_all(const Make& make, const Setting& setting) {
  RankKinds kinds = kinds_of(make, setting);
  EXPECT_LT(kinds.run.size(), 40);
  std::vector<int64_t> drawn;
  for (uint64_t i = 0; drawn.size() < 12; ++i) {
    const auto rank = static_cast<int64_t>(splitmix64(i) % 64);
    if (std::find(kinds.run.begin(), kinds.run.end(), rank) == kinds.run.end()) drawn.push_back(rank);
  }
  for (const RankRun& run : dry_runs(make, setting, drawn)) {
    const int64_t rank = run.tape.rank;
    const int32_t kind = kinds.tapes.kind_of[rank];
    SCOPED_TRACE("rank " + std::to_string(rank) + ", kind of rank " + std::to_string(kinds.tapes.kinds[kind].rank));
    EXPECT_EQ(counts_of(run.tape, rank), counts_of(kinds.tapes.kinds[kind], rank));
    EXPECT_NEAR(static_cast<double>(run.peak), static_cast<double>(kinds.runs[kind].peak),
                0.01 * static_cast<double>(run.peak));
    EXPECT_EQ(run.tape.hash(), kinds.tapes.kinds[kind].hash()) << first_difference(run.tape, kinds.tapes.kinds[kind]);
  }
  return kinds;
}

TEST(RankKinds, X14_FewRanksStandForAll) {
  const RankKinds unet = expect_kinds_stand_for_all([] { return bench::UNet(); }, {{8, 8}, 256, 256});
  EXPECT_TRUE(unet.unlike.empty());
  EXPECT_EQ(unet.tapes.mesh, (std::vector<int64_t>{8, 8}));
}

// A block of 4,096 is much larger than the others. Its rank is at no edge, and in no other way unlike the others.
TEST(RankKinds, X14_TheOneRankWithALargeBlockIsFound) {
  SeenMesh mesh{{64, 64}, {"rows", "columns"}, {{{{0, 1}, std::vector<int64_t>(4096, 3)}, {}}}};
  SeenCut padded{{1, 0}, std::vector<int64_t>(4096, 1)};
  padded.sizes[64 * 20 + 41] = 900;
  mesh.cuts[padded] = {};
  const RankKinds kinds = find_kinds(4096, [&](const std::vector<int64_t>& ranks) {
    std::vector<RankRun> all(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      all[i].meshes = {mesh};
      all[i].tape.rank = ranks[i];
      all[i].peak = all[i].tape.live = padded.sizes[mesh.block_of(padded, ranks[i])];
    }
    return all;
  });

  const int64_t rank = 64 * 41 + 20;
  EXPECT_EQ(kinds.runs[kinds.tapes.kind_of[rank]].peak, 900);
  EXPECT_EQ(kinds.runs[kinds.tapes.kind_of[rank - 64]].peak, 1);
  EXPECT_EQ(std::count(kinds.tapes.kind_of.begin(), kinds.tapes.kind_of.end(), kinds.tapes.kind_of[rank]), 1);
  EXPECT_LT(kinds.run.size(), 64);
  EXPECT_TRUE(kinds.unlike.empty());
}

// Programs without meshes have ranks, too.
TEST(RankKinds, X14_WithoutAMeshTheFirstTheLastAndAMiddleRankAreRun) {
  std::vector<int64_t> ran;
  const RankKinds kinds = find_kinds(4096, [&](const std::vector<int64_t>& ranks) {
    ran.insert(ran.end(), ranks.begin(), ranks.end());
    std::vector<RankRun> all(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) all[i].tape.live = ranks[i] == 4095 ? 7 : 5;
    return all;
  });
  EXPECT_EQ(kinds.tapes.kinds.size(), 2);
  EXPECT_EQ(kinds.tapes.kind_of[4095], 1);
  EXPECT_EQ(kinds.tapes.kind_of[2000], 0);
  EXPECT_LE(ran.size(), 8);
}

// Ten of 400 ranks read what the others need, and one of these reads less.
TEST(RankKinds, X14_RanksWithAnotherShareAreRun) {
  std::vector<int64_t> share(400, 0);
  std::fill(share.begin() + 100, share.begin() + 109, 7);
  share[109] = 3;
  const RankKinds kinds = find_kinds(400, [&](const std::vector<int64_t>& ranks) {
    std::vector<RankRun> all(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      all[i].tape.rank = static_cast<int32_t>(ranks[i]);
      all[i].peak = all[i].tape.live = 1000 * share[ranks[i]] + 10;
      if (ranks[i] == 0) all[i].shares = {share, {1, 2}};  // the other one is of another number of ranks
    }
    return all;
  });

  EXPECT_TRUE(kinds.unlike.empty());
  EXPECT_EQ(kinds.tapes.kinds.size(), 3u);
  EXPECT_EQ(kinds.tapes.kind_of[100], kinds.tapes.kind_of[108]);
  EXPECT_NE(kinds.tapes.kind_of[108], kinds.tapes.kind_of[109]);
  EXPECT_NE(kinds.tapes.kind_of[110], kinds.tapes.kind_of[109]);
  EXPECT_LE(kinds.run.size(), 12u);
}

}  // namespace
}  // namespace moonhalo::testing::test_rank_kinds
