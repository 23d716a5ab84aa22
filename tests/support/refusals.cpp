// SPDX-License-Identifier: Apache-2.0
#include "tests/support/refusals.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>

namespace moonhalo::testing {
namespace {

std::atomic<Refusals*> living{nullptr};

}  // namespace

Refusals::Refusals() { TORCH_INTERNAL_ASSERT(living.exchange(this) == nullptr, "two Refusals at once"); }

Refusals::~Refusals() { living = nullptr; }

void Refusals::meet(int64_t rank, int64_t ranks) {
  Refusals* all = living;
  if (all == nullptr) return;
  std::unique_lock<std::mutex> lock(all->mutex_);
  all->refused_.insert(rank);
  all->ranks_ = ranks;
  all->changed_.notify_all();
  all->changed_.wait_for(lock, std::chrono::seconds(60),
                         [&] { return static_cast<int64_t>(all->refused_.size()) == ranks; });
}

std::string Refusals::alone() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (refused_.empty() || static_cast<int64_t>(refused_.size()) == ranks_) return "";
  std::string text = "of " + std::to_string(ranks_) + " ranks these refuse alone:";
  for (const int64_t rank : refused_) text += " " + std::to_string(rank);
  return text;
}

}  // namespace moonhalo::testing
