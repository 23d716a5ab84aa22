// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/rank_context.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace moonhalo::testing::test_rank_context {
namespace {

const RankLocal<int> number{7};
const RankLocal<std::vector<int>> list;

TEST(RankContext, EveryThreadHasValuesOfItsOwn) {
  *number = 8;
  list->push_back(1);
  std::thread([] {
    EXPECT_EQ(*number, 7);
    EXPECT_TRUE(list->empty());
    *number = 9;
  }).join();

  EXPECT_EQ(*number, 8);
  EXPECT_EQ(list->size(), 1u);
}

std::string told;  // by destructors of the thread below, which is joined
const RankLocal<std::string> early;

struct Late {
  ~Late() { told += *early + ", late gone; "; }
};
const RankLocal<Late> late;

struct Again {
  ~Again() { told += *early; }
};
const RankLocal<Again> again;

TEST(RankContext, ValuesEndWithTheirThreadInReverseOrder) {
  told.clear();
  std::thread([] {
    *early = "early";
    *late;
  }).join();
  EXPECT_EQ(told, "early, late gone; ");

  told = "empty: ";
  std::thread([] { *again; }).join();
  EXPECT_EQ(told, "empty: ") << "a value that a destructor asks for is made again";
}

}  // namespace
}  // namespace moonhalo::testing::test_rank_context
