// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moonhalo {

class Communicator;

/// Rank threads of `world` that take part in nothing for a while (they have done their part of a step and wait outside
/// of any collective):
/// a rank that waits for one of them in a collective throws at once, as if it had ended. Any thread; nothing on other
/// backends.
void set_away(Communicator& world, const std::vector<int>& ranks, bool away);

/// True if the ranks of this group of threads have parted ways, or were aborted: it is of no further use.
bool is_broken(Communicator& world);

/// Communicators of processes whose ranks can part for a while. This rank's call has failed: until come_back it takes
/// part in nothing of this world, and a rank that waits for it there gets a CommError within a moment. (Ranks are not
/// stopped.) Other worlds of the same ranks go on, so that they can meet there.
class PartsForAWhile {
 public:
  virtual ~PartsForAWhile() = default;
  virtual void part() = 0;
  /// Every rank calls it, after all of them have met elsewhere.
  virtual void come_back() = 0;
  /// Says what all ranks of the world waited in when they were found to wait for each other, the same on all of them,
  /// and forgets it; "" if they were not, or where that is not looked for.
  virtual std::string take_stuck() { return ""; }
  /// A rank of this communicator that has parted and is not back, as far as this one has heard; else -1. Does not wait.
  virtual int parted() = 0;
};

}  // namespace moonhalo
