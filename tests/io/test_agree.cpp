// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/agree.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace moonhalo::io {
namespace {

using namespace std::chrono_literals;

TEST(Agree, WaitsForARankThatWritesForLongerThanTheTimeLimit) {
  run_ranks(2, [](Communicator& world) {
    world.set_timeout(200ms);
    agree(world, [&] {
      if (world.rank() == 0) std::this_thread::sleep_for(800ms);
    });
  });
}

}  // namespace
}  // namespace moonhalo::io
