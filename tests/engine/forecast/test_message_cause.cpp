// SPDX-License-Identifier: Apache-2.0
// The causes of messages, and shorter edges, from tapes made by hand: X14.
#include "moonhalo/engine/forecast/message_cause.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/accumulate.h>

#include "moonhalo/engine/forecast/clocks.h"
#include "tests/support/tape_by_hand.h"

namespace moonhalo::testing::test_message_cause {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Parts of 100 bytes to and from the three others of four ranks.
const std::vector<TapePart> kToAll = {{1, 100}, {2, 100}, {3, 100}};

std::vector<MessageCause> causes_of(const Tape& tape) {
  std::vector<MessageCause> causes;
  for (const TapeEvent& event : tape.events) {
    if (const auto* verb = std::get_if<TapeVerb>(&event.what)) causes.push_back(cause_of(*verb));
    if (const auto* exchange = std::get_if<TapeExchange>(&event.what)) causes.push_back(cause_of(*exchange));
  }
  return causes;
}

// The same messages are of any cause: it does not follow from their shape.
TEST(MessageCause, X14_IsTheirTraffic) {
  TapeByHand rank(0, 4);
  for (const Traffic traffic : {Traffic::kHalo, Traffic::kGradients, Traffic::kParameters, Traffic::kStages}) {
    rank.traffic(traffic).exchange(kToAll, kToAll).verb(Verb::kAllGather, first_ranks(4), 400);
  }
  EXPECT_THAT(
      causes_of(rank.tape()),
      ElementsAre(MessageCause{Traffic::kHalo}, MessageCause{Traffic::kHalo}, MessageCause{Traffic::kGradients},
                  MessageCause{Traffic::kGradients}, MessageCause{Traffic::kParameters},
                  MessageCause{Traffic::kParameters}, MessageCause{Traffic::kStages}, MessageCause{Traffic::kStages}));
}

TEST(MessageCause, X14_InputsOfOperatorsAreSummedOrMoved) {
  const MessageCause sums{Traffic::kAllReduce}, moves{Traffic::kRedistribute};
  for (const Traffic traffic : {Traffic::kInputs, Traffic::kRedistribute}) {
    TapeByHand rank(0, 4);
    rank.traffic(traffic).exchange(kToAll, kToAll).verb(Verb::kAllToAll, first_ranks(4), 400);
    rank.verb(Verb::kAllReduce, first_ranks(4), 8);
    // In one memory a large sum is two calls.
    rank.verb(Verb::kReduceScatter, first_ranks(4), 4 << 20).verb(Verb::kAllGather, first_ranks(4), 4 << 20);
    EXPECT_THAT(causes_of(rank.tape()), ElementsAre(moves, moves, sums, sums, sums));
  }
}

TEST(MessageCause, X14_OfCallsOfTheProgramTheVerbIsKnown) {
  TapeByHand rank(0, 4);
  rank.verb(Verb::kAllGather, first_ranks(4), 8).verb(Verb::kBarrier, first_ranks(4), 0);
  EXPECT_THAT(causes_of(rank.tape()), ElementsAre(MessageCause{Traffic::kOther, Verb::kAllGather},
                                                  MessageCause{Traffic::kOther, Verb::kBarrier}));
}

// The tape of an inner rank of rows x columns ranks, each with a block of `height` x `width`.
TapeByHand with_edges(int64_t rows, int64_t columns, int64_t height, int64_t width) {
  TapeByHand rank(columns + 1, rows * columns);
  const auto down = static_cast<int32_t>(columns);
  std::vector<TapePart> parts = {{-1, height}, {1, height}, {-down, width}};
  if (rows > 2) parts.push_back({down, width});
  rank.traffic(Traffic::kHalo).exchange(parts, parts).wait();
  return rank;
}

TEST(MessageCause, X14_OtherMeshesOfTheSameRanksHaveShorterEdges) {
  const auto better = shorter_edges(with_edges(2, 32, 32, 2).tape(), {2, 32});
  ASSERT_TRUE(better);
  EXPECT_THAT(better->mesh, ElementsAre(8, 8));
  EXPECT_DOUBLE_EQ(better->share, 32.0 / 66.0);  // four edges of 8 rows or columns; now two of 32 and one of 2
  EXPECT_FALSE(shorter_edges(with_edges(8, 8, 8, 8).tape(), {8, 8})) << "squares";
  EXPECT_FALSE(shorter_edges(with_edges(4, 8, 16, 9).tape(), {4, 8})) << "near to squares";

  TapeByHand line(1, 8);
  line.traffic(Traffic::kHalo).exchange({{-1, 64}, {1, 64}}, {{-1, 64}, {1, 64}}).wait();
  EXPECT_FALSE(shorter_edges(line.tape(), {8})) << "one dim";
  EXPECT_FALSE(shorter_edges(line.tape(), {1, 8})) << "edges along one dim";
  TapeByHand far(0, 16);
  far.traffic(Traffic::kHalo).exchange({{1, 64}, {2, 64}, {4, 64}}, {{1, 64}, {2, 64}, {4, 64}}).wait();
  EXPECT_FALSE(shorter_edges(far.tape(), {4, 4})) << "blocks that move";
  // A message of no bytes to a rank that is not beside this one counts as nothing.
  TapeByHand empty = with_edges(2, 32, 32, 2);
  empty.exchange({{9, 0}}, {{-9, 0}}).wait();
  const auto beside_empty = shorter_edges(empty.tape(), {2, 32});
  ASSERT_TRUE(beside_empty);
  EXPECT_THAT(beside_empty->mesh, ElementsAre(8, 8));
}

TEST(MessageCause, X14_BlocksThatMoveAreNoEdges) {
  const auto far = [](const std::vector<TapePart>& parts, const std::vector<int64_t>& mesh) {
    TapeByHand rank(0, c10::multiply_integers(mesh));
    rank.exchange(parts, parts);
    return bytes_sent_far(rank.tape(), std::get<TapeExchange>(rank.tape().events[0].what), mesh);
  };
  EXPECT_EQ(far({{1, 100}, {2, 100}}, {8}), 100);
  EXPECT_EQ(far({{1, 100}, {7, 100}}, {8}), 0) << "around the end";
  EXPECT_EQ(far(kToAll, {4}), 300) << "to more ranks than are beside one";
  EXPECT_EQ(far(kToAll, {2, 2}), 0) << "edges and a corner";
}

std::string advice_of(const TapeByHand& rank, const std::vector<int64_t>& mesh) {
  Machine machine;
  machine.name = "by hand";
  machine.measured = true;
  machine.device.kind = "cuda";
  machine.device.flops["product"][""] = TapeByHand::kRate;
  machine.device.bandwidth = {{1e12, 1e12}};
  machine.levels = {{.name = "all", .latency = 1e-9, .bandwidth = 1e3}};
  RankTapes tapes = one_kind(rank, rank.tape().ranks);
  tapes.mesh = mesh;
  tapes.mesh_dims = {"rows", "columns"};
  std::string all;
  for (const Hindrance& one : forecast_step(machine, tapes, "tcp").hindrances) all += one.what + "\n" + one.fix + "\n";
  return all;
}

TEST(MessageCause, X14_RemediesOfAStepFollowTheCause) {
  EXPECT_THAT(advice_of(with_edges(2, 32, 32, 2), {2, 32}),
              HasSubstr("make the mesh rows 8 x columns 8: edges of blocks then have 48 % of the bytes"));
  EXPECT_THAT(advice_of(with_edges(8, 8, 8, 8), {8, 8}), Not(HasSubstr("make the mesh")));

  const auto advice = [](Traffic traffic) {
    TapeByHand rank(0, 4);
    rank.traffic(traffic).exchange(kToAll, kToAll).wait();
    return advice_of(rank, {4, 1});
  };
  EXPECT_THAT(advice(Traffic::kGradients), HasSubstr("in 1 call: sums of gradients\nmore samples on each rank"));
  EXPECT_THAT(advice(Traffic::kParameters), HasSubstr("parameters of fully_shard\nfully_shard with reshard_after"));
  EXPECT_THAT(advice(Traffic::kInputs), HasSubstr("blocks that move to other ranks\nkeep one cut"));
  EXPECT_THAT(advice(Traffic::kHalo), HasSubstr("blocks that move to other ranks\nkeep one cut")) << "far";
  EXPECT_THAT(advice(Traffic::kStages), HasSubstr("tensors between stages of a pipeline\ndivide the model"));
  EXPECT_THAT(advice(Traffic::kOther), HasSubstr("in 1 call: exchange\ncall it before the steps"));
}

}  // namespace
}  // namespace moonhalo::testing::test_message_cause
