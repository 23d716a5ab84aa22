// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace moonhalo {

/// Memory that LibTorch's allocator gave to tensors, in bytes.
struct MemoryUse {
  /// Given out now.
  int64_t live = 0;
  /// The most that was given out at once since the count began, or since reset_memory_peak().
  int64_t peak = 0;
};

class MemoryCounter;

/// Counts the memory of this rank's tensors during its lifetime. Rank threads that start meanwhile (run_ranks) count
/// for themselves, each its own. The `moonhalo` program holds one for every rank; a C++ program makes one before its
/// first tensor: LibTorch warns on stderr when a block that it gave out uncounted is freed. A count inside of another
/// adds to both, but for AddressesOnly. It costs two locked additions for each block, about 0.1 us. Where another
/// profiler of LibTorch already watches this thread's allocator, nothing is counted (counts_memory() is false).
class MemoryCount {
 public:
  MemoryCount();
  ~MemoryCount();
  MemoryCount(const MemoryCount&) = delete;
  MemoryCount& operator=(const MemoryCount&) = delete;

 private:
  std::shared_ptr<MemoryCounter> outer_;
  std::optional<c10::DebugInfoGuard> guard_;
};

/// True while a MemoryCount of this rank exists. Not collective.
bool counts_memory();

/// Memory of this rank's tensors on `device`: on the host (kCPU), else on all devices of the rank together. A block
/// counts for the rank that asked for it, and is taken off the rank that frees it. Throws ValueError unless
/// counts_memory(). Not collective.
MemoryUse memory_use(c10::DeviceType device = c10::DeviceType::CPU);

/// From here on the peaks of this rank are those since now. Throws ValueError unless counts_memory(). Not collective.
void reset_memory_peak();

/// Is called for each block of this rank in host memory that is given out (`bytes` above 0) or taken back (below), by
/// any thread of the rank. Not collective.
class MemoryWatcher {
 public:
  virtual ~MemoryWatcher() = default;
  /// The call for one block.
  virtual void changed(const void* block, int64_t bytes) = 0;
};
/// Sets the watcher of this rank's count, null for none. It has no effect unless counts_memory(). Once this returns,
/// the watcher before is not called any more. Not collective.
void watch_memory(MemoryWatcher* watcher);

/// A block that is addresses without memory, of a tensor whose values are not computed. It counts in this thread's
/// count as if it had memory, and, until the object ends, in that count: counts outside of it are of what there is.
class AddressesOnly {
 public:
  AddressesOnly(const void* block, int64_t bytes);
  ~AddressesOnly();
  AddressesOnly(const AddressesOnly&) = delete;
  AddressesOnly& operator=(const AddressesOnly&) = delete;

 private:
  void report(int64_t bytes) const;

  const void* block_;
  int64_t bytes_;
  std::shared_ptr<MemoryCounter> counter_;
};

/// Resident memory of this process in bytes, with libraries and what malloc keeps. Rank threads share it. Not
/// collective.
int64_t resident_memory();

/// The peak within a scope. Scopes may be nested; the peaks outside of it stay as they would be without it:
///
///     const MemoryPeak within;
///     net->forward(x);
///     within.use().peak - within.live_at_start()
///
/// Where nothing is counted, all numbers are 0.
class MemoryPeak {
 public:
  explicit MemoryPeak(c10::DeviceType device = c10::DeviceType::CPU);
  ~MemoryPeak();
  MemoryPeak(const MemoryPeak&) = delete;
  MemoryPeak& operator=(const MemoryPeak&) = delete;

  /// The live memory when this scope began, in bytes.
  int64_t live_at_start() const { return live_at_start_; }
  /// Live memory now, and the peak since this scope began.
  MemoryUse use() const;

 private:
  std::shared_ptr<MemoryCounter> counter_;
  c10::DeviceType device_;
  int64_t live_at_start_ = 0, outer_peak_ = 0;
};

/// A helper thread of a rank counts for the rank: what the rank's thread has from memory_counter(), the helper gives to
/// CountMemoryFor, once, before its first tensor. Null (nothing is counted) is allowed. Not collective.
std::shared_ptr<MemoryCounter> memory_counter();
class CountMemoryFor {
 public:
  explicit CountMemoryFor(const std::shared_ptr<MemoryCounter>& counter);

 private:
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace moonhalo
