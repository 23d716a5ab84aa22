// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/base/rank_context.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/comm/device/device_link.h"
#include "moonhalo/engine/comm/time_limit.h"
#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/dispatch/scoped_settings.h"
#include "moonhalo/engine/exchange/halo_options.h"
#include "moonhalo/engine/tensor/output_cut.h"

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

TEST(RankContext, ExitHooksRunWhileValuesLive) {
  told.clear();
  std::thread([] {
    RankContext::current().at_exit([] { told += *early + ", hook; "; });
    *early = "early";
    *late;
  }).join();
  EXPECT_EQ(told, "early, hook; early, late gone; ");
}

TEST(Settings, OneGuardPutsAllOfThemBack) {
  const Settings before = settings();
  {
    const ScopedSettings scope;
    set_halo({.overlap = false});
    set_output_cut(OutputCut::kRebalance);
    set_fallback(Fallback::kError);
    set_check_replicated(false);
    set_device_link("staged");
    base_context->settings.time_limit = std::chrono::seconds(7);

    EXPECT_FALSE(settings().halo.overlap);
    EXPECT_EQ(output_cut(), OutputCut::kRebalance);
    EXPECT_FALSE(check_replicated());
    EXPECT_EQ(default_time_limit(), std::chrono::seconds(7));
    std::thread([&] { EXPECT_EQ(settings(), before) << "another rank's"; }).join();
  }
  EXPECT_EQ(settings(), before);
  EXPECT_EQ(set_fallback(Fallback::kReplicate), Fallback::kReplicate);
}

}  // namespace
}  // namespace moonhalo::testing::test_rank_context
