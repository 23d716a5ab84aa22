// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>

namespace moonhalo::testing {

/// Counts what LibTorch's CPU allocator gives out and takes back on a thread, while installed there:
///     auto live = std::make_shared<LiveBytes>();
///     const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, live);
struct LiveBytes : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    now += bytes;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t now = 0, peak = 0;
};

}  // namespace moonhalo::testing
