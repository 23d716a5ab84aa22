// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/stuck.h"

#include <utility>

namespace moonhalo {

void StuckRanks::enter(int rank, std::string text) {
  const std::lock_guard lock(mutex_);
  ++generation_;
  for (Rank& one : ranks_) one.looked = false;
  ranks_[rank] = {true, false, std::move(text), ""};
}

void StuckRanks::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ++generation_;
  for (Rank& one : ranks_) one.looked = false;
  ranks_[rank] = {};
}

uint64_t StuckRanks::generation() {
  const std::lock_guard lock(mutex_);
  return generation_;
}

std::string StuckRanks::verdict(int rank) {
  const std::lock_guard lock(mutex_);
  return ranks_[rank].verdict;
}

std::string StuckRanks::look(int rank, uint64_t generation, const std::vector<bool>& ended) {
  const std::lock_guard lock(mutex_);
  if (!ranks_[rank].verdict.empty()) return ranks_[rank].verdict;
  ranks_[rank].looked = generation == generation_;
  std::string text;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ended[r]) continue;
    if (!ranks_[r].waits || !ranks_[r].looked) return "";
    text += (text.empty() ? "" : "\n        ") + std::string("rank ") + std::to_string(r) + ": " + ranks_[r].text;
  }
  for (Rank& one : ranks_) {
    if (one.waits) one.verdict = text;
  }
  return text;
}

}  // namespace moonhalo
