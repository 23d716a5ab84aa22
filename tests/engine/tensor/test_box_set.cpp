// SPDX-License-Identifier: Apache-2.0
// Boxes in no grid, several a rank, as a cut field and back (X15).
#include "moonhalo/engine/tensor/box_set.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_box_set {
namespace {

using ::testing::HasSubstr;

at::Tensor whole() { return at::arange(8 * 9, at::kDouble).reshape({8, 9}); }

struct Piece {
  int rank;
  std::vector<int64_t> begin, extent;
};
/// Like a pinwheel: no row or column parts them. Rank 1 of 3 has most, rank 2 none; no box has the last column.
const std::vector<Piece> kPieces = {
    {0, {0, 0}, {3, 5}}, {1, {0, 5}, {5, 3}}, {1, {5, 3}, {3, 5}}, {0, {3, 0}, {5, 3}}, {1, {3, 3}, {2, 2}}};

/// This rank's boxes, each with a ghost of 1 all round that holds -7.
struct Patches {
  explicit Patches(int rank, const std::vector<Piece>& pieces = kPieces) {
    for (const Piece& piece : pieces) {
      if (piece.rank != rank) continue;
      memory.push_back(at::full({piece.extent[0] + 2, piece.extent[1] + 2}, -7, at::kDouble));
      owned(memory.size() - 1).copy_(part(whole(), piece));
      blocks.push_back({memory.back().data_ptr(),
                        at::kDouble,
                        memory.back().sizes().vec(),
                        {},
                        {1, 1},
                        {1, 1},
                        piece.begin,
                        {8, 9}});
      mine.push_back(piece);
    }
  }
  static at::Tensor part(const at::Tensor& full, const Piece& piece) {
    return full.narrow(0, piece.begin[0], piece.extent[0]).narrow(1, piece.begin[1], piece.extent[1]);
  }
  at::Tensor owned(size_t i) const {
    return memory[i].narrow(0, 1, memory[i].size(0) - 2).narrow(1, 1, memory[i].size(1) - 2);
  }
  std::vector<at::Tensor> memory;
  std::vector<Block> blocks;
  std::vector<Piece> mine;
};

BoxSet make(const std::vector<Block>& blocks, Communicator& world) {
  return BoxSet(blocks, world, [&](int64_t ranks) { return init_device_mesh(world, "cpu", {ranks}); });
}

TEST(X15_BoxSet, IsTheFieldAndBack) {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, [&](Communicator& world) {
      std::vector<Piece> pieces = kPieces;
      for (Piece& piece : pieces) piece.rank %= ranks;
      Patches patches(world.rank(), pieces);
      BoxSet boxes = make(patches.blocks, world);
      at::Tensor expected = whole();
      expected.narrow(1, 8, 1).zero_();
      const int64_t before = world.stats().by_kind[CommStats::kExchange].calls;

      boxes.read();

      EXPECT_EQ(world.stats().by_kind[CommStats::kExchange].calls - before, ranks == 1 ? 0 : 1);
      EXPECT_TRUE(at::equal(full_tensor(boxes.field()), expected));
      boxes.field().mul_(2);
      boxes.write();
      for (size_t i = 0; i < patches.memory.size(); ++i) {
        EXPECT_TRUE(at::equal(patches.owned(i), 2 * Patches::part(whole(), patches.mine[i])));
        EXPECT_EQ((patches.memory[i] == -7).sum().item<int64_t>(),
                  patches.memory[i].numel() - patches.owned(i).numel());
      }
    });
  }
}

/// A snapshot that others read later goes past the caches where it is large: the same numbers, in volumes and with a
/// stride of rows too, and the block may be written as soon as it has been sent.
TEST(X15_BoxSet, ALargeSnapshotIsTheBlockAsItWas) {
  const at::Tensor full = at::arange(3 * 301 * 190, at::kDouble).reshape({3, 301, 190}).sin();
  on_ranks(2, [&](Communicator& world) {
    at::Tensor memory = at::full({3, 303, 197}, -7, at::kDouble);
    const at::Tensor owned = memory.narrow(1, 1, 301).narrow(2, 3, 190);
    owned.copy_(full);
    std::vector<Block> mine;
    if (world.rank() == 0)
      mine.push_back(
          {memory.data_ptr(), at::kDouble, {3, 303, 197}, {}, {0, 1, 3}, {0, 1, 4}, {0, 0, 0}, {3, 301, 190}});
    BoxSet boxes(
        mine, world, [&](int64_t ranks) { return init_device_mesh(world, "cpu", {ranks}); }, 1);
    for (const double factor : {1.0, 2.0}) {
      std::vector<at::Tensor> given;
      if (world.rank() == 0) given.push_back(owned);

      BoxSet::Reading reading = boxes.start_read(given, {}, /*later=*/true);
      if (world.rank() == 0) memory.mul_(2);
      boxes.finish_read(reading);

      EXPECT_TRUE(at::equal(full_tensor(boxes.field()), factor * full));
    }
  });
}

TEST(X15_BoxSet, RefusesBoxesThatContradict) {
  on_ranks(3, [](Communicator& world) {
    const auto message = [&](auto change) {
      Patches patches(world.rank());
      change(patches.blocks);
      return message_of([&] { make(patches.blocks, world); });
    };
    const bool first = world.rank() == 0;
    EXPECT_THAT(message([&](auto& blocks) {
                  if (first) blocks[0].begin = {1, 0};
                }),
                HasSubstr("boxes: two boxes own the same elements\n  have  boxes of ranks 0 and 0"));
    EXPECT_THAT(message([&](auto& blocks) {
                  if (first) blocks[1].begin = {4, 0};
                }),
                HasSubstr("boxes: a box reaches beyond the field\n  have  rank 0: [4, 9) along dim 0 of 8"));
    EXPECT_THAT(message([&](auto& blocks) {
                  if (first)
                    for (auto& b : blocks) b.global = {8, 10};
                }),
                HasSubstr("boxes: ranks differ in dtype"));
    EXPECT_THAT(message([&](auto& blocks) {
                  if (first) blocks[0].global = {8, 10};
                }),
                HasSubstr("boxes: they differ in dtype"));
    EXPECT_THAT(message([&](auto& blocks) {
                  if (first) blocks[0].data = nullptr;
                }),
                HasSubstr("block: no memory"));
    EXPECT_THAT(message([&](auto& blocks) { blocks.clear(); }), HasSubstr("boxes: no rank has any"));
  });
}

// Boxes that begin between them hide no overlap of the first one with the last one.
TEST(X15_BoxSet, RefusesBoxesThatOverlapPastOthers) {
  on_ranks(3, [](Communicator& world) {
    const std::vector<Piece> pieces = {
        {0, {0, 0}, {8, 3}}, {1, {1, 3}, {2, 2}}, {1, {2, 5}, {2, 2}}, {2, {4, 2}, {2, 3}}};
    const Patches patches(world.rank(), pieces);
    EXPECT_THAT(message_of([&] { make(patches.blocks, world); }),
                HasSubstr("have  boxes of ranks 0 and 2 with [2, 1] elements in common"));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_box_set
