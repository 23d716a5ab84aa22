// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/module_memory.h"

#include <algorithm>
#include <ctime>
#include <utility>

namespace moonhalo {
namespace {

constexpr size_t kMostSamples = 20000;

int64_t time_of_sample() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1000000000} + now.tv_nsec;
}

}  // namespace

ModuleMemory::ModuleMemory() {
  if (!counts_memory()) return;
  Place before;
  before.before = true;
  total_ = live_[before] = memory_use().live;
  record_.peak = total_;
  record_.at_peak = {{before, total_}};
  record_.samples.push_back({time_of_sample(), total_});
  watch_memory(this);
}

ModuleMemory::~ModuleMemory() { watch_memory(nullptr); }

void ModuleMemory::add(const Place& place, int64_t bytes) {
  live_[place] += bytes;
  total_ += bytes;
}

void ModuleMemory::changed(const void* block, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Place before;
  before.before = true;
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
    record_.at_peak.clear();
    for (const auto& [place, live] : live_) {
      if (live != 0) record_.at_peak.push_back({place, live});
    }
  }
  const int64_t last = record_.samples.back().live, step = record_.peak / 100 + 1;
  if (record_.samples.size() < kMostSamples && (total_ > last + step || total_ < last - step))
    record_.samples.push_back({time_of_sample(), total_});
}

std::vector<MemoryRecord::Held> ModuleMemory::held() {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryRecord::Held> all;
  for (const auto& [place, live] : live_) {
    if (live != 0) all.push_back({place, live});
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return all;
}

MemoryRecord ModuleMemory::take() {
  watch_memory(nullptr);
  const std::lock_guard lock(mutex_);
  return std::move(record_);
}

}  // namespace moonhalo
