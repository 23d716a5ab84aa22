// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/fake/root_facts.h"

namespace moonhalo {

void RootFacts::begin(const std::vector<int64_t>& ranks) {
  const std::lock_guard lock(mutex_);
  running_.insert(ranks.begin(), ranks.end());
}

void RootFacts::end(int64_t rank) {
  {
    const std::lock_guard lock(mutex_);
    running_.erase(rank);
  }
  changed_.notify_all();
}

void RootFacts::share(const Call& call, std::vector<int64_t> facts) {
  {
    const std::lock_guard lock(mutex_);
    shared_[call] = std::move(facts);
  }
  changed_.notify_all();
}

bool RootFacts::waits_for(int64_t rank, int64_t other) const {
  for (auto next = waiting_.find(rank); next != waiting_.end(); next = waiting_.find(next->second)) {
    if (next->second == other) return true;
  }
  return false;
}

std::optional<std::vector<int64_t>> RootFacts::read(const Call& call, int64_t rank) {
  std::unique_lock lock(mutex_);
  waiting_[rank] = call.root;
  // Whoever closes a circle of waits goes on without the facts.
  changed_.wait(lock,
                [&] { return shared_.contains(call) || !running_.contains(call.root) || waits_for(call.root, rank); });
  waiting_.erase(rank);
  const auto found = shared_.find(call);
  return found != shared_.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace moonhalo
