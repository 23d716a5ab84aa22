// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/module_memory.h"

#include <algorithm>
#include <utility>

#include "moonhalo/engine/profile/profile_clock.h"

namespace moonhalo {
namespace {

constexpr size_t kMostSamples = 20000;

}  // namespace

ModuleMemory::ModuleMemory(MemoryWatcher* also) : also_(also) {
  if (!counts_memory()) return;
  Place before;
  before.before = true;
  total_ = live_[before] = memory_use().live;
  record_.peak = total_;
  at_new_peak_ = true;
  record_.samples.push_back({profile_clock(), total_});
  watch_memory(this);
}

ModuleMemory::~ModuleMemory() { watch_memory(nullptr); }

void ModuleMemory::add(const Place& place, int64_t bytes) {
  live_[place] += bytes;
  total_ += bytes;
}

void ModuleMemory::changed(const void* block, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (also_ != nullptr) also_->changed(block, bytes);
  Place before;
  before.before = true;
  if (bytes <= 0) keep_peak();
  if (bytes > 0) {
    // Threads that read for the rank run beside its parts.
    const Place place = std::this_thread::get_id() == thread_ ? place_ : Place{0, Phase::kReading, false};
    blocks_[block] = {place, bytes};
    add(place, bytes);
  } else if (const auto found = blocks_.find(block); found != blocks_.end()) {
    add(found->second.place, -found->second.bytes);
    blocks_.erase(found);
  } else {
    add(before, bytes);
  }
  if (total_ > record_.peak) {
    record_.peak = total_;
    at_new_peak_ = true;
  }
  const int64_t last = record_.samples.back().live, step = record_.peak / 100 + 1;
  if (record_.samples.size() < kMostSamples && (total_ > last + step || total_ < last - step))
    record_.samples.push_back({profile_clock(), total_});
}

std::vector<MemoryRecord::Held> ModuleMemory::all_held() const {
  std::vector<MemoryRecord::Held> all;
  for (const auto& [place, live] : live_) {
    if (live != 0) all.push_back({place, live});
  }
  return all;
}

// Memory grows by many blocks in turn: the places are copied when the first of them goes.
void ModuleMemory::keep_peak() {
  if (std::exchange(at_new_peak_, false)) record_.at_peak = all_held();
}

std::vector<MemoryRecord::Held> ModuleMemory::held() {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryRecord::Held> all = all_held();
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return all;
}

MemoryRecord ModuleMemory::take() {
  watch_memory(nullptr);
  const std::lock_guard lock(mutex_);
  keep_peak();
  return std::move(record_);
}

}  // namespace moonhalo
