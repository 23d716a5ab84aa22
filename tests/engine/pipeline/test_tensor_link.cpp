// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/pipeline/tensor_link.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_tensor_link {
namespace {

// The memory of a stage that is ahead of the next one: no more lists than the link has space for.
TEST(Pipeline, LinksHaveRoomForTheirCapacity) {
  for (const int64_t capacity : {1, 2, 3}) {
    std::atomic<int64_t> sent = 0;
    on_ranks(2, [&](Communicator& world) {
      TensorLink link(world.split(0, world.rank()), capacity);
      for (int64_t i = 0; i < 8; ++i) {
        if (world.rank() == 0) {
          link.send(TensorList({make_tensor({100, 100}, i)}), "list");
          ++sent;
          continue;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // in which a link without limit sends all
        EXPECT_LE(sent, i + capacity);
        EXPECT_EQ(difference(link.receive(nullptr, "list")->at(0), make_tensor({100, 100}, i), 0), "");
      }
      if (world.rank() == 0) link.finish();
    });
  }
}

}  // namespace
}  // namespace moonhalo::testing::test_tensor_link
