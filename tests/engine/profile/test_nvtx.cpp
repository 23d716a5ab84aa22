// SPDX-License-Identifier: Apache-2.0
// Events as NVTX ranges, with LibTorch's part for CUDA replaced by one that notes them.
#include "moonhalo/engine/profile/nvtx.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <vector>

#include "moonhalo/engine/profile/recorder.h"
#include "tests/support/oracle.h"

namespace moonhalo::testing::test_nvtx {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using torch::profiler::impl::ProfilerStubs;

struct NotedRanges final : ProfilerStubs {
  mutable std::vector<std::string> open, pushed;
  NotedRanges() { torch::profiler::impl::registerCUDAMethods(this); }
  ~NotedRanges() override { torch::profiler::impl::registerCUDAMethods(before_); }
  NotedRanges(const NotedRanges&) = delete;

  void rangePush(const char* name) const override {
    open.emplace_back(name);
    pushed.emplace_back(name);
  }
  void rangePop() const override {
    ASSERT_FALSE(open.empty());
    open.pop_back();
  }
  bool enabled() const override { return true; }
  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

 private:
  ProfilerStubs* const before_ = const_cast<ProfilerStubs*>(torch::profiler::impl::cudaStubs());
};

void compute() {
  const InModule module("encoder");
  const RecordRange range("assimilate");
  at::ones({3}).exp();
}

TEST(Nvtx, Y30_EveryEventIsARangeThatEnds) {
  const NotedRanges seen;
  Recorder recorder(1, nullptr, Recorder::kMostEvents, true);
  compute();
  EXPECT_EQ(seen.open, std::vector<std::string>{"step"});
  const RecordRange goes_on("goes on");
  recorder.next_step(2);
  EXPECT_EQ(seen.open, (std::vector<std::string>{"step", "goes on"}));
  const RankRecord record = recorder.stop(true);

  EXPECT_TRUE(seen.open.empty());
  EXPECT_EQ(seen.pushed.size(), record.events.size());
  EXPECT_THAT(seen.pushed, AllOf(Contains("encoder"), Contains("assimilate"), Contains("aten::exp")));
}

TEST(Nvtx, Y30_RangesEndWhereARecordIsFull) {
  const NotedRanges seen;
  Recorder recorder(1, nullptr, 4, true);
  for (int i = 0; i < 3; ++i) compute();

  EXPECT_TRUE(seen.open.empty());
  EXPECT_EQ(seen.pushed.size(), 4u);
}

TEST(Nvtx, Y30_OthersGetNone) {
  const NotedRanges seen;
  Recorder recorder(1);
  compute();

  EXPECT_TRUE(seen.pushed.empty());
}

TEST(Nvtx, Y30_WithoutCudaItIsRefused) {
  if (torch::profiler::impl::cudaStubs()->enabled()) GTEST_SKIP() << "LibTorch with CUDA";
  EXPECT_THAT(message_of([] { Recorder(1, nullptr, 10, true); }),
              AllOf(HasSubstr("profile: no NVTX ranges in this build"), HasSubstr("LibTorch without CUDA")));
  EXPECT_EQ(Recorder::of_this_rank(), nullptr);
}

}  // namespace
}  // namespace moonhalo::testing::test_nvtx
