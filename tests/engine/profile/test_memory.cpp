// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/memory.h"

#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/live_bytes.h"

namespace moonhalo::testing::test_memory {

constexpr int64_t kKiB = 1024;

at::Tensor block(int64_t kib) { return at::empty({kib * kKiB}, at::kByte); }

TEST(Memory, X14_LiveBytesAndPeakOfTensors) {
  const MemoryCount count;
  EXPECT_TRUE(counts_memory());
  EXPECT_EQ(memory_use().live, 0);
  at::Tensor kept = block(4);
  { const at::Tensor dropped = block(10); }
  EXPECT_EQ(memory_use().live, 4 * kKiB);
  EXPECT_EQ(memory_use().peak, 14 * kKiB);
  EXPECT_EQ(memory_use(c10::DeviceType::CUDA).peak, 0);
  reset_memory_peak();
  EXPECT_EQ(memory_use().peak, 4 * kKiB);
  const at::Tensor view = kept.slice(0, 0, 100);  // shares the block
  kept = at::Tensor();
  EXPECT_EQ(memory_use().live, 4 * kKiB);
}

TEST(Memory, X14_AnInnerCountAddsToTheOuterOne) {
  const MemoryCount outer;
  const at::Tensor first = block(1);
  {
    const MemoryCount inner;
    const at::Tensor second = block(2);
    EXPECT_EQ(memory_use().live, 2 * kKiB);
  }
  EXPECT_EQ(memory_use().live, 1 * kKiB);
  EXPECT_EQ(memory_use().peak, 3 * kKiB);
}

// Were one counter shared, each rank would see the blocks of all.
TEST(Memory, X14_ThreadRanksCountTheirOwn) {
  const MemoryCount count;
  const at::Tensor before = block(64);
  run_ranks(3, [](Communicator& world) {
    EXPECT_EQ(memory_use().live, 0);
    const at::Tensor mine = block(world.rank() + 1);
    world.barrier();
    EXPECT_EQ(memory_use().live, (world.rank() + 1) * kKiB);
    EXPECT_EQ(memory_use().peak, (world.rank() + 1) * kKiB);
    world.barrier();
  });
  EXPECT_EQ(memory_use().live, 64 * kKiB);
}

TEST(Memory, RanksOfACallerThatDoesNotCountDoNotEither) {
  run_ranks(2, [](Communicator&) { EXPECT_FALSE(counts_memory()); });
}

TEST(Memory, AHelperThreadCountsForItsRank) {
  const MemoryCount count;
  at::Tensor made;
  std::thread([&made, memory = memory_counter()] {
    const CountMemoryFor rank(memory);
    made = block(8);
  }).join();
  EXPECT_EQ(memory_use().live, 8 * kKiB);
  made = at::Tensor();
  EXPECT_EQ(memory_use().live, 0);
}

TEST(Memory, PeaksOfScopesLeaveThatOfTheWhole) {
  const MemoryCount count;
  const at::Tensor kept = block(1);
  { const at::Tensor high = block(100); }
  {
    const MemoryPeak outer;
    EXPECT_EQ(outer.live_at_start(), 1 * kKiB);
    { const at::Tensor low = block(10); }
    {
      const MemoryPeak inner;
      const at::Tensor lower = block(5);
      EXPECT_EQ(inner.use().peak, 6 * kKiB);
      EXPECT_EQ(inner.use().live, 6 * kKiB);
    }
    EXPECT_EQ(outer.use().peak, 11 * kKiB);
    EXPECT_EQ(outer.use().live, 1 * kKiB);
  }
  EXPECT_EQ(memory_use().peak, 101 * kKiB);
}

TEST(Memory, AnotherProfilerIsLeftAlone) {
  auto other = std::make_shared<LiveBytes>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, other);
  const MemoryCount count;
  EXPECT_FALSE(counts_memory());
  const at::Tensor made = block(3);
  EXPECT_EQ(other->now, 3 * kKiB);
  EXPECT_THROW(memory_use(), c10::ValueError);
  const MemoryPeak peak;
  EXPECT_EQ(peak.use().live, 0);
}

TEST(Memory, ResidentMemoryHoldsWhatWasWritten) {
  const int64_t before = resident_memory();
  const at::Tensor written = at::ones({64 * kKiB * kKiB}, at::kByte);
  EXPECT_GT(resident_memory() - before, 60 * kKiB * kKiB);
}

}  // namespace moonhalo::testing::test_memory
