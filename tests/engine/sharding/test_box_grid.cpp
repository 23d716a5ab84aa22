// SPDX-License-Identifier: Apache-2.0
// Boxes of all ranks become a grid, or an error that names rows and ranks (X15).
#include "moonhalo/engine/sharding/box_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing::test_box_grid {
namespace {

using ::testing::HasSubstr;
using List = std::vector<int64_t>;

OwnedBox box(List begin, List extent) { return {std::move(begin), std::move(extent)}; }

TEST(X15_BoxGrid, UnevenBlocksInAnyOrderOfRanks) {
  const BoxGrid grid =
      grid_of({box({0, 0}, {4, 7}), box({4, 0}, {3, 7}), box({0, 7}, {4, 2}), box({4, 7}, {3, 2})}, {});

  EXPECT_EQ(grid.global, (List{7, 9}));
  EXPECT_EQ(grid.sizes, (std::vector<List>{{4, 3}, {7, 2}}));
  EXPECT_EQ(grid.place, (List{0, 2, 1, 3}));
  EXPECT_EQ(grid.mesh_shape(), (List{2, 2}));
}

TEST(X15_BoxGrid, EmptyBlocks) {
  const BoxGrid line = grid_of({box({0}, {5}), box({5}, {0}), box({5}, {0}), box({5}, {4})}, {9});
  EXPECT_EQ(line.sizes, (std::vector<List>{{5, 0, 0, 4}}));
  EXPECT_EQ(line.place, (List{0, 1, 2, 3}));

  // A column of the grid without elements, its ranks last.
  const BoxGrid grid =
      grid_of({box({0, 0}, {2, 3}), box({2, 0}, {2, 3}), box({0, 3}, {2, 0}), box({2, 3}, {2, 0})}, {});
  EXPECT_EQ(grid.sizes, (std::vector<List>{{2, 2}, {3, 0}}));
  EXPECT_EQ(grid.place, (List{0, 2, 1, 3}));
}

// A rank without cells often says nothing of where they would be.
TEST(X15_BoxGrid, EmptyBlocksAnywhere) {
  const BoxGrid line =
      grid_of({box({0, 0}, {5, 7}), box({0, 0}, {0, 0}), box({5, 0}, {4, 7}), box({2, 3}, {0, 7})}, {});
  EXPECT_EQ(line.sizes, (std::vector<List>{{5, 0, 4, 0}, {7}}));
  EXPECT_EQ(line.place, (List{0, 1, 2, 3}));
  EXPECT_EQ(line.global, (List{9, 7}));

  // Where the first rank has none, and dim 1 is cut.
  const BoxGrid row = grid_of({box({0, 0}, {0, 7}), box({0, 0}, {4, 5}), box({0, 5}, {4, 2})}, {4, 7});
  EXPECT_EQ(row.sizes, (std::vector<List>{{4}, {0, 5, 2}}));
  EXPECT_EQ(row.place, (List{0, 1, 2}));

  // Two of six beside 2 x 2 blocks: a third row of blocks.
  const BoxGrid grid = grid_of({box({0, 0}, {0, 0}), box({0, 0}, {2, 3}), box({0, 3}, {2, 1}), box({2, 0}, {2, 3}),
                                box({2, 3}, {2, 1}), box({0, 0}, {0, 0})},
                               {});
  EXPECT_EQ(grid.sizes, (std::vector<List>{{2, 2, 0}, {3, 1}}));
  EXPECT_EQ(grid.place, (List{4, 0, 1, 2, 3, 5}));

  // One rank has all, or none has any.
  EXPECT_EQ(grid_of({box({0, 0}, {0, 0}), box({0, 0}, {4, 7})}, {}).sizes, (std::vector<List>{{0, 4}, {7}}));
  const BoxGrid none = grid_of({box({0, 0}, {6, 0}), box({0, 0}, {6, 0})}, {});
  EXPECT_EQ(none.sizes, (std::vector<List>{{6}, {0, 0}}));
  EXPECT_EQ(none.global, (List{6, 0}));
}

TEST(X15_BoxGrid, OneRankCutsNothing) {
  const BoxGrid grid = grid_of({box({0, 0}, {3, 2})}, {});
  EXPECT_EQ(grid.mesh_shape(), List{1});
}

TEST(X15_BoxGrid, Refusals) {
  const struct {
    std::vector<OwnedBox> boxes;
    List global;
    const char* text;
  } cases[] = {
      {{box({0}, {3}), box({2}, {3})},
       {},
       "boxes: ranks 0 and 1 own the same elements\n  have  rank 0: rows 0 to 3; rank 1: rows 2 to 5"},
      {{box({0}, {3}), box({0}, {3})}, {}, "boxes: ranks 0 and 1 own the same elements"},
      {{box({0}, {3}), box({4}, {3})}, {}, "boxes: no rank owns rows 3 to 4 of dim 0"},
      {{box({1}, {3}), box({4}, {3})}, {}, "boxes: no rank owns rows 0 to 1 of dim 0"},
      {{box({0}, {3}), box({3}, {3})}, {7}, "boxes: no rank owns rows 6 to 7 of dim 0"},
      {{box({0}, {3}), box({3}, {3})}, {5}, "boxes: the box of rank 1 reaches beyond the field along dim 0"},
      {{box({0}, {3}), box({3, 0}, {3, 1})}, {}, "boxes: ranks 0 and 1 have boxes of different numbers of dims"},
      {{box({0}, {3}), box({3}, {-1})}, {}, "boxes: negative numbers in the box of rank 1"},
      {{box({0, 0}, {4, 5}), box({4, 0}, {4, 5}), box({0, 5}, {5, 5}), box({5, 5}, {3, 5})},
       {},
       "boxes: the boxes form no grid along dim 0"},
      {{box({0, 0}, {8, 5}), box({0, 5}, {4, 5}), box({4, 5}, {4, 5})},
       {},
       "boxes: the boxes form no grid along dim 0"},
      {{box({0, 0}, {2, 2}), box({2, 2}, {2, 2})},
       {},
       "boxes: the boxes form no grid\n  have  2 boxes, which divide the dims into 4 blocks"},
      {{box({0, 0}, {4, 5}), box({4, 0}, {4, 6})},
       {},
       "boxes: the boxes form no grid along dim 1: ranks 0 and 1 begin at one row with different extents\n  have  rank "
       "0: rows 0 to 5; rank 1: rows 0 to 6"},
      // A grid of 2 x 2 boxes has no place for a fifth; boxes that form none have none for an empty one either.
      {{box({0, 0}, {2, 2}), box({2, 0}, {2, 2}), box({0, 2}, {2, 2}), box({2, 2}, {2, 2}), box({0, 0}, {0, 0})},
       {},
       "boxes: 5 ranks form no grid around 4 boxes that have elements\n  have  1 ranks without any"},
      {{box({0, 0}, {2, 2}), box({0, 0}, {0, 0}), box({2, 2}, {2, 2})}, {}, "boxes: the boxes form no grid"},
      {{box({0}, {0}), box({0}, {0})}, {3}, "boxes: no rank owns rows 0 to 3 of dim 0"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.text);
    EXPECT_THAT(message_of([&] { grid_of(one.boxes, one.global); }), HasSubstr(one.text));
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_box_grid
