// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace moonhalo {

/// Finds that all rank threads wait for each other, in different groups or calls, so that none can go on. A rank that
/// has waited for a while enters; as long as no rank enters or leaves, no rank runs, and once each has looked again and
/// found nothing to go on with, nothing ever will come. Slow path only.
class DeadlockDetector {
 public:
  explicit DeadlockDetector(int ranks) : ranks_(ranks) {}

  /// `text`: what the rank waits in.
  void enter(int rank, std::string text);
  void leave(int rank);
  /// Counts enters and leaves. To be read before the rank looks again whether it may go on.
  uint64_t generation();
  /// Returns what all ranks were found to wait in while this one did; "" unless they were stuck.
  std::string report(int rank);
  /// The rank has looked since `generation` was read and cannot go on. What all ranks wait in, for each of them, when
  /// all that have not `ended` are stuck; else "".
  std::string poll(int rank, uint64_t generation, const std::vector<bool>& ended);

 private:
  struct Rank {
    bool waits = false, looked = false;
    std::string text, report;
  };
  std::mutex mutex_;
  uint64_t generation_ = 0;
  std::vector<Rank> ranks_;
};

}  // namespace moonhalo
