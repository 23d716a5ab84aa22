// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/rank_board.h"

#include <c10/util/StringUtil.h>

#include <chrono>
#include <vector>

#include "moonhalo/engine/comm/communicator_backend.h"

namespace moonhalo::scripting {

RankBoard::Outcome RankBoard::arrive(Communicator& world, const std::string& failure) {
  std::unique_lock lock(mutex_);
  Step& step = steps_[next_step_[world.rank()]++];
  ++step.arrived;
  if (!failure.empty()) step.failures[world.rank()] = failure;
  // A rank that waits here joins no collective that others of this step may wait in.
  backend_of(world).set_inactive({world.rank()}, true);
  if (step.arrived == ranks_) {
    for (int rank = 0; rank < ranks_; ++rank) backend_of(world).set_inactive({rank}, false);
    step.aborted |= !step.failures.empty() && backend_of(world).is_broken();
  }
  changed_.notify_all();
  const auto all_here = [&] { return step.arrived == ranks_; };
  changed_.wait(lock, [&] { return all_here() || !step.failures.empty(); });
  if (!changed_.wait_for(lock, std::chrono::seconds(5), all_here)) {
    const bool first = !step.aborted;
    step.aborted = true;
    lock.unlock();
    if (first) world.abort("rank " + std::to_string(world.rank()) + " waits for ranks that a failed rank has left");
    lock.lock();
    changed_.wait(lock, all_here);
  }
  return {text(step), step.aborted};
}

std::string RankBoard::text(const Step& step) const {
  std::map<std::string, std::vector<int>> ranks;
  std::vector<std::string> order;
  for (const auto& [rank, failure] : step.failures) {
    if (ranks[failure].empty()) order.push_back(failure);
    ranks[failure].push_back(rank);
  }
  std::string text;
  for (const std::string& failure : order) {
    if (ranks_ > 1) {
      text += ranks[failure].size() == 1 ? "rank " : "ranks ";
      text += c10::Join(", ", ranks[failure]) + ": ";
    }
    text += failure;
  }
  return text;
}

void RankBoard::publish(const std::string& text) {
  const std::lock_guard lock(mutex_);
  published_[static_cast<int>(published_.size())] = text;
  changed_.notify_all();
}

std::string RankBoard::await(int step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return published_.count(step) > 0; });
  return published_[step];
}

}  // namespace moonhalo::scripting
