// SPDX-License-Identifier: Apache-2.0
// The purposes of messages, and shorter edges, from tapes made by hand: X14.
#include "moonhalo/engine/forecast/message_purpose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/accumulate.h>

#include "moonhalo/engine/forecast/clocks.h"
#include "tests/support/tape_by_hand.h"

namespace moonhalo::testing::test_message_purpose {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum Purpose;

// Parts of 100 bytes to and from the three others of four ranks.
const std::vector<TapePart> kToAll = {{1, 100}, {2, 100}, {3, 100}};

TEST(MessagePurpose, X14_GradientsAreScatteredAndGathered) {
  TapeByHand rank(0, 4);
  // Two buckets are under way together; the sums of each are 400 bytes.
  rank.phase(Phase::kBackward).exchange(kToAll, kToAll).exchange(kToAll, kToAll);
  rank.wait(0).verb(Verb::kAllGather, first_ranks(4), 400).wait(1).verb(Verb::kAllGather, first_ranks(4), 400);
  EXPECT_THAT(purposes_of(rank.tape()), ElementsAre(kGradients, kGradients, kNone, kGradients, kNone, kGradients));

  TapeByHand small(0, 4);
  small.verb(Verb::kAllGather, first_ranks(4), 64).phase(Phase::kOptimizer).verb(Verb::kAllGather, first_ranks(4), 64);
  small.verb(Verb::kAllReduce, first_ranks(4), 1 << 20);
  EXPECT_THAT(purposes_of(small.tape()), ElementsAre(kGather, kGradients, kGradients));
}

TEST(MessagePurpose, X14_ASumMayBeTwoCalls) {
  TapeByHand rank(0, 4);
  rank.verb(Verb::kReduceScatter, first_ranks(4), 4 << 20).verb(Verb::kAllGather, first_ranks(4), 4 << 20);
  rank.verb(Verb::kAllReduce, first_ranks(4), 8).verb(Verb::kAllGather, first_ranks(4), 8);
  EXPECT_THAT(purposes_of(rank.tape()), ElementsAre(kOther, kSum, kSum, kGather));
}

TEST(MessagePurpose, X14_ExchangesAreOfEdgesOrOfParameters) {
  TapeByHand rank(1, 4);
  rank.exchange({{-1, 100}, {1, 100}}, {{-1, 100}, {1, 100}})
      .exchange({{-1, 5}, {1, 5}, {2, 5}}, {{-1, 5}, {1, 5}, {2, 5}});
  Tape tape = rank.tape();
  EXPECT_THAT(purposes_of(tape), ElementsAre(kExchange, kExchange));
  tape.gathers_parameters = true;
  EXPECT_THAT(purposes_of(tape), ElementsAre(kExchange, kParametersOrRows));

  // A block of another size is received from each, as of parameters that the ranks do not divide.
  TapeByHand uneven(1, 4);
  uneven.exchange({{-1, 6}, {1, 6}, {2, 6}}, {{-1, 6}, {1, 6}, {2, 2}});
  uneven.exchange({{-1, 6}, {1, 6}, {2, 2}}, {{-1, 6}, {1, 6}, {2, 6}});
  tape = uneven.tape();
  tape.gathers_parameters = true;
  EXPECT_THAT(purposes_of(tape), ElementsAre(kParametersOrRows, kParametersOrRows));

  // Edges and the corner of 2 x 2 ranks go to all others.
  TapeByHand square(0, 4);
  square.exchange({{1, 64}, {2, 64}, {3, 1}}, {{1, 64}, {2, 64}, {3, 1}});
  tape = square.tape();
  tape.gathers_parameters = true;
  EXPECT_THAT(purposes_of(tape), ElementsAre(kExchange));
}

// The tape of an inner rank of rows x columns ranks, each with a block of `height` x `width`.
TapeByHand with_edges(int64_t rows, int64_t columns, int64_t height, int64_t width) {
  TapeByHand rank(columns + 1, rows * columns);
  const auto down = static_cast<int32_t>(columns);
  std::vector<TapePart> parts = {{-1, height}, {1, height}, {-down, width}};
  if (rows > 2) parts.push_back({down, width});
  rank.exchange(parts, parts).wait();
  return rank;
}

TEST(MessagePurpose, X14_OtherMeshesOfTheSameRanksHaveShorterEdges) {
  const auto better = shorter_edges(with_edges(2, 32, 32, 2).tape(), {2, 32});
  ASSERT_TRUE(better);
  EXPECT_THAT(better->mesh, ElementsAre(8, 8));
  EXPECT_DOUBLE_EQ(better->share, 32.0 / 66.0);  // four edges of 8 rows or columns; now two of 32 and one of 2
  EXPECT_FALSE(shorter_edges(with_edges(8, 8, 8, 8).tape(), {8, 8})) << "squares";
  EXPECT_FALSE(shorter_edges(with_edges(4, 8, 16, 9).tape(), {4, 8})) << "near to squares";

  TapeByHand line(1, 8);
  line.exchange({{-1, 64}, {1, 64}}, {{-1, 64}, {1, 64}}).wait();
  EXPECT_FALSE(shorter_edges(line.tape(), {8})) << "one dim";
  EXPECT_FALSE(shorter_edges(line.tape(), {1, 8})) << "edges along one dim";
  TapeByHand far(0, 16);
  far.exchange({{1, 64}, {2, 64}, {4, 64}}, {{1, 64}, {2, 64}, {4, 64}}).wait();
  EXPECT_FALSE(shorter_edges(far.tape(), {4, 4})) << "blocks that move";
  // A message of no bytes to a rank that is not beside this one counts as nothing.
  TapeByHand empty = with_edges(2, 32, 32, 2);
  empty.exchange({{9, 0}}, {{-9, 0}}).wait();
  const auto beside_empty = shorter_edges(empty.tape(), {2, 32});
  ASSERT_TRUE(beside_empty);
  EXPECT_THAT(beside_empty->mesh, ElementsAre(8, 8));
}

TEST(MessagePurpose, X14_BlocksThatMoveAreNoEdges) {
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

std::string advice_of(const TapeByHand& rank, const std::vector<int64_t>& mesh, bool gathers_parameters = false) {
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
  tapes.kinds[0].gathers_parameters = gathers_parameters;
  std::string all;
  for (const Hindrance& one : forecast_step(machine, tapes, "tcp").hindrances) all += one.what + "\n" + one.fix + "\n";
  return all;
}

TEST(MessagePurpose, X14_RemediesOfAStepFollowThePurpose) {
  EXPECT_THAT(advice_of(with_edges(2, 32, 32, 2), {2, 32}),
              HasSubstr("make the mesh rows 8 x columns 8: edges of blocks then have 48 % of the bytes"));
  EXPECT_THAT(advice_of(with_edges(8, 8, 8, 8), {8, 8}), Not(HasSubstr("make the mesh")));

  TapeByHand gradients(0, 4);
  gradients.phase(Phase::kBackward).exchange(kToAll, kToAll).wait().verb(Verb::kAllGather, first_ranks(4), 400);
  EXPECT_THAT(advice_of(gradients, {2, 2}), HasSubstr("in 1 messages with gradients\nmore samples on each rank"));

  TapeByHand parameters(0, 4);
  parameters.exchange(kToAll, kToAll).wait();
  EXPECT_THAT(advice_of(parameters, {2, 2}, true),
              HasSubstr("messages with parameters, their gradients, or rows of blocks\nkeep parameters whole"));
}

}  // namespace
}  // namespace moonhalo::testing::test_message_purpose
