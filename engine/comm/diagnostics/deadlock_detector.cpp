// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/diagnostics/deadlock_detector.h"

#include <utility>

namespace moonhalo {

void DeadlockDetector::enter(int rank, std::string text) {
  const std::lock_guard lock(mutex_);
  ++generation_;
  for (Rank& one : ranks_) one.looked = false;
  ranks_[rank] = {true, false, std::move(text), ""};
}

void DeadlockDetector::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ++generation_;
  for (Rank& one : ranks_) one.looked = false;
  ranks_[rank] = {};
}

uint64_t DeadlockDetector::generation() {
  const std::lock_guard lock(mutex_);
  return generation_;
}

std::string DeadlockDetector::report(int rank) {
  const std::lock_guard lock(mutex_);
  return ranks_[rank].report;
}

std::string DeadlockDetector::poll(int rank, uint64_t generation, const std::vector<bool>& ended) {
  const std::lock_guard lock(mutex_);
  if (!ranks_[rank].report.empty()) return ranks_[rank].report;
  ranks_[rank].looked = generation == generation_;
  std::string text;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ended[r]) continue;
    if (!ranks_[r].waits || !ranks_[r].looked) return "";
    text += (text.empty() ? "" : "\n        ") + std::string("rank ") + std::to_string(r) + ": " + ranks_[r].text;
  }
  for (Rank& one : ranks_) {
    if (one.waits) one.report = text;
  }
  return text;
}

}  // namespace moonhalo
