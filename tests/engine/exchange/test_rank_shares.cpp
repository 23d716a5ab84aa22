// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/rank_shares.h"

#include <gmock/gmock.h>

#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/engine/moonhalo.h"

namespace moonhalo::testing::test_rank_shares {
namespace {

// The numbers that rank 0 of six notes.
std::vector<int64_t> numbers(const MovedBoxes& moved) {
  std::vector<int64_t> found;
  const CommunicatorPtr world = make_fake_communicator(0, 6, nullptr);
  const MeshPtr mesh = init_device_mesh(*world, "cpu", {6}, {"ranks"});
  const SharesWatch before =
      watch_shares([&](const DeviceMesh*, const std::vector<int64_t>& numbers) { found = numbers; });
  note_moved_boxes(*mesh, moved);
  watch_shares(before);
  return found;
}

// The last four ranks need two of eight rows each. The first two read them: they send as much, but to other ranks.
TEST(RankShares, X14_RanksThatSendAsMuchHaveOneNumber) {
  const auto read = [](int64_t, int64_t rank) { return rank < 2 ? Box{{4 * rank, 4 * rank + 4}} : Box{{0, 0}}; };
  const auto needed = [](int64_t, int64_t rank) { return rank < 2 ? Box{{0, 0}} : Box{{2 * rank - 4, 2 * rank - 2}}; };
  const auto found = numbers({.from = read, .to = needed});
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[0], found[1]);
  EXPECT_NE(found[1], found[2]);
  EXPECT_THAT(std::vector<int64_t>(found.begin() + 2, found.end()), ::testing::Each(found[2]));
}

// Each rank reads three rows in one of two rounds.
TEST(RankShares, X14_RoundsAddUp) {
  const auto read = [](int64_t round, int64_t rank) {
    const bool reads = rank / 3 == round;
    return Box{{reads ? 3 * rank : 0, reads ? 3 * rank + 3 : 0}};
  };
  const auto found = numbers({.rounds = 2, .from = read, .to = [](int64_t, int64_t) { return Box{{0, 18}}; }});
  EXPECT_THAT(found, ::testing::Each(found[0]));
}

TEST(RankShares, X14_OnlyRanksThatAreServedCount) {
  const auto parity = [](int64_t owner, int64_t user) { return owner % 2 == user % 2 && owner < 4; };
  const auto found = numbers({.from =
                                  [](int64_t, int64_t) {
                                    return Box{{0, 4}};
                                  },
                              .to =
                                  [](int64_t, int64_t) {
                                    return Box{{0, 4}};
                                  },
                              .serves = parity});
  EXPECT_EQ(found[0], found[3]);
  EXPECT_EQ(found[4], found[5]);
  EXPECT_NE(found[0], found[4]);
}

}  // namespace
}  // namespace moonhalo::testing::test_rank_shares
