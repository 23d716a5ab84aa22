// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/box.h"

#include <gmock/gmock.h>

namespace moonhalo::testing::test_box {
namespace {

using ::testing::ElementsAre;

TEST(Interval, RowsFromBeginToBeforeEnd) {
  const Interval rows{3, 7}, none{5, 5}, inverted{7, 3};

  EXPECT_EQ(rows.size(), 4);
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(inverted.size(), 0);
  EXPECT_FALSE(rows.empty());
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(inverted.empty());
  EXPECT_TRUE(rows.contains(3));
  EXPECT_FALSE(rows.contains(7));
  EXPECT_TRUE(rows.contains(Interval{3, 7}));
  EXPECT_FALSE(rows.contains(Interval{2, 4}));
  EXPECT_EQ(rows.shifted(-4), (Interval{-1, 3}));
  EXPECT_LT((Interval{3, 7}), (Interval{4, 5}));
}

TEST(Interval, IntersectionDoesNotEndBeforeItBegins) {
  EXPECT_EQ((Interval{0, 5}.intersect({3, 9})), (Interval{3, 5}));
  EXPECT_EQ((Interval{3, 9}.intersect({0, 5})), (Interval{3, 5}));
  EXPECT_EQ((Interval{0, 9}.intersect({4, 6})), (Interval{4, 6}));
  EXPECT_EQ((Interval{0, 2}.intersect({5, 9})), (Interval{5, 5}));
  EXPECT_EQ((Interval{5, 9}.intersect({0, 2})), (Interval{5, 5}));
  EXPECT_EQ((Interval{2, -1}.intersect({0, 9})), (Interval{2, 2}));
}

TEST(Box, CountsElements) {
  const Box box = {{0, 3}, {4, 9}}, flat = {{0, 3}, {4, 4}}, scalar;

  EXPECT_EQ(box.numel(), 15);
  EXPECT_THAT(box.shape(), ElementsAre(3, 5));
  EXPECT_FALSE(box.empty());
  EXPECT_EQ(flat.numel(), 0);
  EXPECT_TRUE(flat.empty());
  EXPECT_EQ((Box{{2, -1}, {5, 2}}).numel(), 0);
  EXPECT_EQ(scalar.ndim(), 0);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_FALSE(scalar.empty());
}

TEST(Box, IntersectsDimByDim) {
  const Box left = {{0, 5}, {0, 4}}, right = {{3, 9}, {0, 4}}, beyond = {{3, 9}, {6, 8}};

  EXPECT_EQ(left.intersect(right), (Box{{3, 5}, {0, 4}}));
  EXPECT_TRUE(left.intersect(beyond).empty());
  EXPECT_EQ(left.intersect(left), left);
  EXPECT_NE(left, right);
  EXPECT_LT(left, right);
}

}  // namespace
}  // namespace moonhalo::testing::test_box
