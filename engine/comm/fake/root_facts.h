// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// Facts that ranks of dry runs share: the shape of a tensor that one rank has. Ranks that run at the same time or
/// later read them. For dry runs of one number of ranks; safe to use from several threads. Nothing of this file is
/// collective.
class RootFacts {
 public:
  /// A call that shares facts: number `number` of those of `root` with the ranks `group`, all of the world.
  struct Call {
    std::vector<int64_t> group;
    int64_t root = 0;
    uint64_t number = 0;
    auto operator<=>(const Call&) const = default;
  };

  /// These ranks run now, and others may wait for them, until end() of each.
  void begin(const std::vector<int64_t>& ranks);
  void end(int64_t rank);

  void share(const Call& call, std::vector<int64_t> facts);
  /// Returns the facts of the root. Waits while the root runs. None if it has not been run, or ended without the call,
  /// or waits for `rank`.
  std::optional<std::vector<int64_t>> read(const Call& call, int64_t rank);

 private:
  bool waits_for(int64_t rank, int64_t other) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int64_t> running_;
  std::map<int64_t, int64_t> waiting_;  // a rank, and for whom it waits
  std::map<Call, std::vector<int64_t>> shared_;
};

/// A fake world whose ranks share `facts`, which may be null. `simulated`: the backend that they would use; "": it is
/// not known. Ranks of "threads" read each other's tensors, and sum large ones in another way. All others are
/// processes, which pack what they send, and take memory for what comes.
CommunicatorPtr make_fake_communicator(int rank, int ranks, std::shared_ptr<RootFacts> facts,
                                       const std::string& simulated = "");

/// Returns the backend that the ranks of a fake group would use; "" if it is not known.
std::string simulated_backend(const Communicator& group);

/// Returns the facts of `root` of a fake group. `facts`: those that this rank has itself, or empty; the root's are
/// shared with the others. Empty where no rank has shared them.
std::vector<int64_t> facts_of_root(const Communicator& group, int root, std::vector<int64_t> facts);

}  // namespace moonhalo
