// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/module_memory.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "moonhalo/engine/dispatch/out_of_memory.h"
#include "moonhalo/engine/profile/memory_note.h"
#include "moonhalo/engine/profile/profiler.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "tests/support/oracle.h"
#include "tests/support/ranks.h"

namespace moonhalo::testing::test_module_memory {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor kilobytes(int64_t count) { return at::empty({count, 1024}, at::kByte); }

int64_t held_by(const ProfileSummary& summary, const std::string& module, const std::string& part) {
  int64_t bytes = 0;
  for (const auto& held : summary.memory.held) bytes += held.module == module && held.part == part ? held.bytes : 0;
  return bytes;
}

int64_t all_held(const ProfileSummary& summary) {
  int64_t bytes = 0;
  for (const auto& held : summary.memory.held) bytes += held.bytes;
  return bytes;
}

TEST(ModuleMemory, Y14_ThePeakIsDividedByModuleAndPart) {
  on_ranks(2, [](Communicator& world) {
    const MemoryCount count;
    const bool first = world.rank() == 0;
    const at::Tensor before = kilobytes(first ? 100 : 10);
    Profiler profiler(world.shared_from_this());
    std::optional<MemoryPeak> peak(std::in_place);
    profiler.start();
    at::Tensor kept, gradient;
    {
      const InModule net("Net");
      {
        const InModule block("blocks.0");
        kept = kilobytes(50);
        kilobytes(30);  // freed before the peak
      }
      const InModule head("head");
      gradient = kilobytes(20);
    }
    const at::Tensor state = [] {
      const RecordPart part("optimizer", Phase::kOptimizer);
      return kilobytes(60);
    }();
    kept.reset();
    const int64_t most = peak->use().peak;
    profiler.stop();

    const ProfileSummary& summary = profiler.summary();
    EXPECT_EQ(summary.memory.rank, 0);  // the one with more before
    EXPECT_EQ(held_by(summary, "(before)", ""), 100 * 1024);
    EXPECT_EQ(held_by(summary, "blocks.0", "forward"), 50 * 1024);
    EXPECT_EQ(held_by(summary, "head", "forward"), 20 * 1024);
    EXPECT_EQ(held_by(summary, "(optimizer)", "optimizer"), 60 * 1024);
    EXPECT_EQ(all_held(summary), summary.memory.peak);
    if (first) EXPECT_NEAR(summary.memory.peak, most, most / 100);
    EXPECT_THAT(memory_table(summary), HasSubstr("235.5 kB, on rank 0"));
    EXPECT_EQ(ProfileSummary::from_json(summary.to_json(), "x").to_json(), summary.to_json());
  });
}

TEST(ModuleMemory, Y14_BlocksFromBeforeAndOfOtherThreadsCount) {
  const MemoryCount count;
  at::Tensor before = kilobytes(100);
  Profiler profiler(make_self_communicator());
  profiler.start();
  before.reset();  // made unseen, taken back
  at::Tensor read;
  std::thread([&read, counter = memory_counter()] {
    const CountMemoryFor rank(counter);
    read = kilobytes(300);
  }).join();
  profiler.stop();

  EXPECT_EQ(profiler.summary().memory.peak, 300 * 1024);
  EXPECT_EQ(held_by(profiler.summary(), "(reading)", "reading"), 300 * 1024);
  EXPECT_EQ(all_held(profiler.summary()), 300 * 1024);
}

TEST(ModuleMemory, Y14_WhereNothingIsCountedNothingIsSaid) {
  Profiler profiler(make_self_communicator());
  profiler.start();
  kilobytes(3);
  profiler.stop();

  EXPECT_EQ(profiler.summary().memory.peak, 0);
  EXPECT_EQ(memory_table(profiler.summary()), "memory was not counted\n");
}

// Errors of memory say who holds it.
TEST(ModuleMemory, Y14_OutOfMemoryErrorsSayWhatHoldsMemory) {
  EXPECT_EQ(memory_note(), "");
  const MemoryCount count;
  const at::Tensor before = kilobytes(100);
  EXPECT_EQ(memory_note(), "\n  have  tensors of this rank: 102.4 kB now, 102.4 kB at the peak");
  Recorder recorder(1);
  const InModule net("Net");
  const at::Tensor kept = kilobytes(300);
  const std::string expected =
      "\n  have  tensors of this rank: 409.6 kB now, 409.6 kB at the peak\n        Net (forward) 307.2 kB\n        "
      "(before) 102.4 kB";
  EXPECT_EQ(memory_note(), expected);
  const CommunicatorPtr world = make_self_communicator();
  const SpecPtr spec = replicated(init_device_mesh(*world, "cpu", {1}), {4});
  const c10::OutOfMemoryError error({__func__, __FILE__, __LINE__}, "no memory");
  EXPECT_THAT(message_of([&] { throw_with_blocks(error, "aten::mm", {spec}); }),
              AllOf(HasSubstr("no memory"), HasSubstr("aten::mm of "), HasSubstr(expected)));
}

TEST(ModuleMemory, Y14_AProfilerThatIsRefusedLeavesTheFirstOneWatching) {
  const MemoryCount count;
  Recorder recorder(1);
  EXPECT_THAT(message_of([] { Recorder(1); }), HasSubstr("this rank records already"));
  const at::Tensor kept = kilobytes(50);
  const RankRecord record = recorder.stop();

  EXPECT_EQ(record.memory.peak, 50 * 1024);
}

struct Counting : MemoryWatcher {
  int64_t bytes = 0;
  void changed(const void*, int64_t by) override { bytes += by; }
};

TEST(ModuleMemory, Y14_AWatcherIsNotCalledOnceItIsGone) {
  const MemoryCount count;
  Counting watcher;
  watch_memory(&watcher);
  at::Tensor x = kilobytes(3);
  watch_memory(nullptr);
  x.reset();

  EXPECT_EQ(watcher.bytes, 3 * 1024);
}

}  // namespace
}  // namespace moonhalo::testing::test_module_memory
