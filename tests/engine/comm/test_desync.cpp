// SPDX-License-Identifier: Apache-2.0
// Ranks that diverge, as threads (under mpirun: tests/mpi/test_desync_mpi.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "moonhalo/engine/comm/diagnostics/check_calls.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "tests/support/desync.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::test_desync {
namespace {

using namespace std::chrono_literals;
using testing::desync_cases;
using testing::DesyncCase;
using testing::harmless_cases;
using ::testing::HasSubstr;
using testing::message_of;
using testing::on_ranks;

class Desync : public ::testing::TestWithParam<DesyncCase> {};

// The time limit of a verb is ten minutes: it is not what ends these.
TEST_P(Desync, IsAnErrorOnEveryRankThatNamesBothCalls) {
  for (const int ranks : {2, 3, 4}) {
    std::atomic<int> threw{0};
    on_ranks(ranks, [&](Communicator& comm) {
      const std::string message = message_of([&] { GetParam().program(comm); });
      for (const std::string& text : GetParam().texts) EXPECT_THAT(message, HasSubstr(text));
      EXPECT_THAT(message, HasSubstr("\n  have  ")) << message;
      EXPECT_THAT(message, HasSubstr("\n  fix   ")) << message;
      threw += !message.empty();
    });
    EXPECT_EQ(threw.load(), ranks);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Desync, ::testing::ValuesIn(desync_cases()),
                         [](const auto& info) { return info.param.name; });

class NoDesync : public ::testing::TestWithParam<DesyncCase> {};

TEST_P(NoDesync, IsNoError) {
  for (const int ranks : {2, 3, 4}) on_ranks(ranks, GetParam().program);
}

INSTANTIATE_TEST_SUITE_P(Cases, NoDesync, ::testing::ValuesIn(harmless_cases()),
                         [](const auto& info) { return info.param.name; });

// No two of these calls are in one group, so that no comparing could find them.
TEST(DeadlockDetector, WaitForEachOtherInDifferentGroupsAndAreTold) {
  std::atomic<int> threw{0};
  on_ranks(4, [&](Communicator& comm) {
    const MeshPtr mesh = init_device_mesh(comm, "cpu", {2, 2});
    at::Tensor data = at::ones({3});
    const std::string message = message_of([&] {
      mesh->group(comm.rank() == 0 ? 0 : 1).all_reduce(data);
      comm.barrier();
    });
    EXPECT_THAT(message, HasSubstr("all ranks wait for each other"));
    EXPECT_THAT(message, HasSubstr("rank 0: all_reduce of Float, 3 elements"));
    EXPECT_THAT(message, HasSubstr("rank 3: barrier (call"));
    threw += !message.empty();
  });
  EXPECT_EQ(threw.load(), 4);
}

TEST(DeadlockDetector, ASlowRankIsWaitedFor) {
  on_ranks(3, [](Communicator& comm) {
    for (int round = 0; round < 3; ++round) {
      if (comm.rank() == round) std::this_thread::sleep_for(700ms);
      comm.barrier();
    }
  });
}

TEST(CallChecks, ThreadsAlwaysCompare) {
  on_ranks(2, [](Communicator& comm) {
    EXPECT_TRUE(set_check_calls(comm, false));
    EXPECT_TRUE(set_check_calls(comm, true));
  });
}

TEST(CallChecks, TheErrorSaysWhereTheProgramsAre) {
  on_ranks(2, [](Communicator& comm) {
    const int owner = 0;
    set_program_position(&owner, [&comm] { return "train.lua:" + std::to_string(10 + comm.rank()); });
    at::Tensor data = at::ones({3});
    const std::string message = message_of([&] { comm.rank() == 0 ? comm.barrier() : comm.all_reduce(data); });
    clear_program_position(&owner);
    EXPECT_THAT(message, HasSubstr("at train.lua:10"));
    EXPECT_THAT(message, HasSubstr("at train.lua:11"));
    EXPECT_THAT(message, HasSubstr("an order that differs (of a hash table)"));
  });
}

}  // namespace
}  // namespace moonhalo::test_desync
