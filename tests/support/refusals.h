// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>

namespace moonhalo::testing {

/// Tells a call that all thread ranks refuse from one that some refuse alone: others are ended by the first that
/// throws, so that it would not be known afterwards. While one lives, a rank of the oracle that throws waits for
/// the others to throw, three seconds at most. One at a time.
class Refusals {
 public:
  Refusals();
  ~Refusals();
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  /// Called by a rank that throws. Does nothing when no Refusals lives.
  static void meet(int64_t rank, int64_t ranks);
  /// "rank 0 of 3 refuses alone", or "" when all or none did.
  std::string alone() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int64_t> refused_;
  int64_t ranks_ = 0;
};

}  // namespace moonhalo::testing
