// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/profile/memory.h"
#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// Divides the memory of this rank's tensors by the module and the part of the step in which they were made. Blocks
/// that were there before stand for themselves. Where nothing is counted (counts_memory()), it stays empty.
/// Not collective.
class ModuleMemory final : public MemoryWatcher {
 public:
  /// `also` is called for each block, too, in the same order; null for none.
  explicit ModuleMemory(MemoryWatcher* also = nullptr);
  ~ModuleMemory() override;
  ModuleMemory(const ModuleMemory&) = delete;
  ModuleMemory& operator=(const ModuleMemory&) = delete;

  /// Sets the place of blocks that this rank's thread makes from here on.
  void set_place(uint16_t module, Phase phase) { place_ = {module, phase, false}; }
  /// Is called for each block of this rank.
  void changed(const void* block, int64_t bytes) override;
  /// Returns the bytes that each place holds now, the largest first.
  std::vector<MemoryRecord::Held> held();
  /// Stops, and returns the record.
  MemoryRecord take();

 private:
  using Place = MemoryRecord::Place;
  struct Block {
    Place place;
    int64_t bytes;
  };
  void add(const Place& place, int64_t bytes);
  std::vector<MemoryRecord::Held> all_held() const;
  void keep_peak();

  MemoryWatcher* const also_;
  const std::thread::id thread_ = std::this_thread::get_id();
  Place place_{};
  std::mutex mutex_;  // threads that read for the rank make blocks, too
  std::unordered_map<const void*, Block> blocks_;
  std::map<Place, int64_t> live_;
  MemoryRecord record_;
  int64_t total_ = 0;
  bool at_new_peak_ = false;  // what is live now is the peak, and not yet in the record
};

}  // namespace moonhalo
