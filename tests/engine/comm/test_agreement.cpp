// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/agreement.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "moonhalo/engine/comm/communicator_backend.h"
#include "tests/support/oracle.h"

namespace moonhalo::test_agreement {
namespace {

using namespace std::chrono_literals;

TEST(Agreement, WaitsForARankThatWritesForLongerThanTheTimeLimit) {
  run_ranks(2, [](Communicator& world) {
    world.set_timeout(200ms);
    fail_together(world, [&] {
      if (world.rank() == 0) std::this_thread::sleep_for(800ms);
    });
  });
}

TEST(Agreement, AllRanksGetTheStringOfRank0) {
  run_ranks(3, [](Communicator& world) {
    const std::string own(static_cast<size_t>(4 - world.rank()), 'x');
    EXPECT_EQ(broadcast_string(world, own), "xxxx");
    EXPECT_EQ(broadcast_string(world, world.rank() == 0 ? "" : "other"), "");
  });
}

TEST(Agreement, WhatRank0FindsOrFailsOfIsTheSameOnAllRanks) {
  run_ranks(3, [](Communicator& world) {
    int calls = 0;
    const auto find = [&] {
      ++calls;
      return "found by " + std::to_string(world.rank());
    };
    const auto fail = []() -> std::string { TORCH_CHECK_VALUE(false, "no such folder"); };

    EXPECT_EQ(run_on_first_rank(world, find), "found by 0");
    EXPECT_EQ(calls, world.rank() == 0 ? 1 : 0);
    EXPECT_THROW(run_on_first_rank(world, fail), c10::ValueError);
    EXPECT_EQ(testing::message_of([&] { run_on_first_rank(world, fail); }), "no such folder");
  });
}

TEST(CommunicatorBackend, MethodsThatABackendLacksDoNothing) {
  const CommunicatorPtr world = make_fake_communicator(1, 4);
  CommunicatorBackend& backend = backend_of(*world);

  backend.suspend();
  backend.report_failure("none");
  backend.set_time_limit(7s);

  EXPECT_EQ(backend.suspended_rank(), -1);
  EXPECT_EQ(backend.peer_failure(3), "");
  EXPECT_FALSE(backend.is_broken());
  EXPECT_FALSE(backend.same_scope().has_value());
  EXPECT_EQ(world->timeout(), 7s);
}

}  // namespace
}  // namespace moonhalo::test_agreement
