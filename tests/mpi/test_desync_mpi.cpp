// SPDX-License-Identifier: Apache-2.0
// Ranks that diverge under mpirun. An error breaks the group that it was in, so each case gets a group of its own.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "tests/mpi/world.h"
#include "tests/support/desync.h"
#include "tests/support/oracle.h"

namespace moonhalo {
namespace {

using namespace std::chrono_literals;
using testing::desync_cases;
using testing::DesyncCase;
using testing::harmless_cases;
using ::testing::HasSubstr;
using testing::message_of;

CommunicatorPtr own_group() {
  CommunicatorPtr group = testing::mpi_world().split(0, testing::mpi_world().rank());
  group->set_timeout(10min);
  return group;
}

class MpiDesync : public ::testing::TestWithParam<DesyncCase> {};

TEST_P(MpiDesync, IsAnErrorOnEveryRankThatNamesBothCalls) {
  const CommunicatorPtr group = own_group();

  const std::string message = message_of([&] { GetParam().program(*group); });

  for (const std::string& text : GetParam().texts) EXPECT_THAT(message, HasSubstr(text));
  EXPECT_THAT(message, HasSubstr("\n  have  "));
  EXPECT_THAT(message, HasSubstr("\n  fix   "));
  testing::mpi_world().barrier();
}

INSTANTIATE_TEST_SUITE_P(Cases, MpiDesync, ::testing::ValuesIn(desync_cases()),
                         [](const auto& info) { return info.param.name; });

class MpiNoDesync : public ::testing::TestWithParam<DesyncCase> {};

TEST_P(MpiNoDesync, IsNoError) { GetParam().program(*own_group()); }

INSTANTIATE_TEST_SUITE_P(Cases, MpiNoDesync, ::testing::ValuesIn(harmless_cases()),
                         [](const auto& info) { return info.param.name; });

// No two of these calls are in one group, so that no comparing could find them.
TEST(MpiDeadlock, WaitForEachOtherInDifferentGroupsAndAreTold) {
  const CommunicatorPtr whole = own_group(), same = own_group();

  const std::string message = message_of([&] {
    at::Tensor data = at::ones({3});
    testing::mpi_world().rank() == 0 ? whole->all_reduce(data) : same->barrier();
  });

  EXPECT_THAT(message, HasSubstr("all ranks wait for each other"));
  EXPECT_THAT(message, HasSubstr("rank 0: all_reduce of Float, 3 elements"));
  EXPECT_THAT(message, HasSubstr("rank 1: barrier (call 1"));
}

TEST(MpiDeadlock, ASlowRankIsWaitedFor) {
  if (testing::mpi_world().rank() == 1) std::this_thread::sleep_for(3s);
  testing::mpi_world().barrier();
}

// Off, the same sums are made and nothing is compared; on again, it is.
TEST(MpiCallChecks, CanBeSwitchedOff) {
  const CommunicatorPtr group = own_group();
  Communicator& world = testing::mpi_world();
  const auto products = [&] {
    at::Tensor data = at::full({1}, 2.0);
    group->all_reduce(data, world.rank() == 0 ? ReduceOp::kProduct : ReduceOp::kSum);
    return data.item<double>();
  };

  EXPECT_TRUE(set_check_calls(world, false));
  const double made = products();
  EXPECT_FALSE(set_check_calls(world, true));
  const std::string message = message_of([&] { products(); });

  EXPECT_EQ(made, world.rank() == 0 ? std::pow(2.0, world.size()) : 2.0 * world.size());
  EXPECT_THAT(message, HasSubstr("op product"));
  EXPECT_THAT(message_of([&] { group->barrier(); }), HasSubstr("diverged before"));
}

TEST(MpiCallChecks, TheEnvironmentSwitchesThemOffForAllWhereOneRankSaysSo) {
  Communicator& world = testing::mpi_world();
  if (world.rank() == 1) ::setenv("MOONHALO_CHECK_CALLS", "0", 1);
  const CommunicatorPtr other = make_mpi_world();
  ::unsetenv("MOONHALO_CHECK_CALLS");

  EXPECT_FALSE(set_check_calls(*other, true));
  EXPECT_TRUE(set_check_calls(*other, true));
}

}  // namespace
}  // namespace moonhalo
