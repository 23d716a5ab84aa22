// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/memory.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <utility>

#include "moonhalo/engine/profile/profile_context.h"

namespace moonhalo {

/// Adds up what LibTorch's allocators report for one rank, whichever of its threads they run on.
class MemoryCounter final : public c10::MemoryReportingInfoBase, public std::enable_shared_from_this<MemoryCounter> {
 public:
  explicit MemoryCounter(std::shared_ptr<MemoryCounter> outer) : outer_(std::move(outer)) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t allocated, size_t reserved, c10::Device device) override {
    count(block, bytes, device);
    if (outer_) outer_->reportMemoryUsage(block, bytes, allocated, reserved, device);
  }
  /// In this count alone.
  void count(const void* block, int64_t bytes, c10::Device device) {
    Pool& pool = pool_of(device.type());
    const int64_t live = pool.live.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    raise(pool.peak, live);
    if (watched_.load(std::memory_order_relaxed) && device.is_cpu()) [[unlikely]]
      pass_on(block, bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  MemoryUse use(c10::DeviceType device) const {
    const Pool& pool = pools_[device == c10::DeviceType::CPU ? 0 : 1];
    const int64_t live = pool.live.load(std::memory_order_relaxed);
    return {live, std::max(live, pool.peak.load(std::memory_order_relaxed))};
  }
  /// The peak so far; from here on it is that since now.
  int64_t restart_peak(c10::DeviceType device) {
    Pool& pool = pool_of(device);
    return pool.peak.exchange(pool.live.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  void watch(MemoryWatcher* watcher) {
    const std::lock_guard lock(watcher_mutex_);
    watcher_ = watcher;
    watched_ = watcher != nullptr;
  }
  void raise_peak(c10::DeviceType device, int64_t peak) { raise(pool_of(device).peak, peak); }

 private:
  struct Pool {
    std::atomic<int64_t> live{0}, peak{0};
  };
  Pool& pool_of(c10::DeviceType device) { return pools_[device == c10::DeviceType::CPU ? 0 : 1]; }
  static void raise(std::atomic<int64_t>& peak, int64_t live) {
    int64_t known = peak.load(std::memory_order_relaxed);
    while (live > known && !peak.compare_exchange_weak(known, live, std::memory_order_relaxed)) {
    }
  }

  void pass_on(const void* block, int64_t bytes) {
    const std::lock_guard lock(watcher_mutex_);
    if (watcher_ != nullptr) watcher_->changed(block, bytes);
  }

  const std::shared_ptr<MemoryCounter> outer_;
  Pool pools_[2];  // host, devices
  std::atomic<bool> watched_{false};
  std::mutex watcher_mutex_;
  MemoryWatcher* watcher_ = nullptr;
};

namespace {

constexpr c10::DebugInfoKind kReporter = c10::DebugInfoKind::PROFILER_STATE;

MemoryCounter& counter() {
  TORCH_CHECK_VALUE(profile_context->memory,
                    "memory: the memory of tensors is not counted here\n  have  no MemoryCount",
                    "\n  fix   run the script by `moonhalo run`, or hold a moonhalo::MemoryCount in the C++ program,",
                    " made before its first tensor and under no other profiler");
  return *profile_context->memory;
}

}  // namespace

// LibTorch has one place for a reporter. The caller of run_ranks may have filled it for its own rank.
MemoryCount::MemoryCount() : outer_(profile_context->memory) {
  c10::DebugInfoBase* const present = c10::ThreadLocalDebugInfo::get(kReporter);
  if (present != nullptr && dynamic_cast<MemoryCounter*>(present) == nullptr) return;
  auto mine = std::make_shared<MemoryCounter>(outer_);
  guard_.emplace(kReporter, mine);
  profile_context->memory = std::move(mine);
}

MemoryCount::~MemoryCount() {
  if (guard_) profile_context->memory = outer_;
}

bool counts_memory() { return profile_context->memory != nullptr; }

MemoryUse memory_use(c10::DeviceType device) { return counter().use(device); }

void reset_memory_peak() {
  MemoryCounter& mine = counter();
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) mine.restart_peak(device);
}

void watch_memory(MemoryWatcher* watcher) {
  if (profile_context->memory) profile_context->memory->watch(watcher);
}

AddressesOnly::AddressesOnly(const void* block, int64_t bytes) : block_(block), bytes_(bytes) {
  if (auto* const here = dynamic_cast<MemoryCounter*>(c10::ThreadLocalDebugInfo::get(kReporter)))
    counter_ = here->shared_from_this();
  report(bytes_);
}

AddressesOnly::~AddressesOnly() { report(-bytes_); }

void AddressesOnly::report(int64_t bytes) const {
  const c10::Device host(c10::kCPU);
  if (counter_) {
    counter_->count(block_, bytes, host);
  } else if (auto* const other = static_cast<c10::MemoryReportingInfoBase*>(c10::ThreadLocalDebugInfo::get(kReporter));
             other != nullptr && dynamic_cast<MemoryCounter*>(other) == nullptr && other->memoryProfilingEnabled()) {
    other->reportMemoryUsage(const_cast<void*>(block_), bytes, static_cast<size_t>(bytes_), 0, host);
  }
}

int64_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  TORCH_CHECK(file >> size >> resident, "resident_memory: cannot read /proc/self/statm");
  return resident * sysconf(_SC_PAGESIZE);
}

MemoryPeak::MemoryPeak(c10::DeviceType device) : counter_(profile_context->memory), device_(device) {
  if (!counter_) return;
  outer_peak_ = counter_->restart_peak(device_);
  live_at_start_ = counter_->use(device_).live;
}

MemoryPeak::~MemoryPeak() {
  if (counter_) counter_->raise_peak(device_, outer_peak_);
}

MemoryUse MemoryPeak::use() const { return counter_ ? counter_->use(device_) : MemoryUse{}; }

std::shared_ptr<MemoryCounter> memory_counter() { return profile_context->memory; }

CountMemoryFor::CountMemoryFor(const std::shared_ptr<MemoryCounter>& counter) {
  if (counter) guard_.emplace(kReporter, counter);
}

}  // namespace moonhalo
