// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <stdexcept>

#include "tests/support/oracle.h"
#include "tests/support/patience.h"

namespace moonhalo::io::test_threads {
namespace {

class InThreads : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(2); }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

struct Nothing {};

TEST_F(InThreads, ItemsAreWorkedOnAtOnce) {
  std::mutex mutex;
  std::condition_variable arrived;
  int64_t waiting = 0, met = 0;
  in_threads<Nothing>(2, [&](int64_t, Nothing&) {
    std::unique_lock lock(mutex);
    ++waiting;
    arrived.notify_all();
    met += arrived.wait_for(lock, moonhalo::testing::kHang, [&] { return waiting == 2; }) ? 1 : 0;
  });

  EXPECT_EQ(met, 2);
}

TEST_F(InThreads, TheFirstItemThatFailsIsTold) {
  std::atomic<int64_t> ended{0};
  const auto work = [&](int64_t i, Nothing&) {
    if (i >= 5) throw std::runtime_error("item " + std::to_string(i));
    ++ended;
  };

  EXPECT_EQ(testing::message_of([&] { in_threads<Nothing>(20, work); }), "item 5");
  EXPECT_EQ(ended, 5);
}

}  // namespace
}  // namespace moonhalo::io::test_threads
