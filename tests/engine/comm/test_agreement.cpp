// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/agreement.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "moonhalo/engine/comm/communicator.h"

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

}  // namespace
}  // namespace moonhalo::test_agreement
