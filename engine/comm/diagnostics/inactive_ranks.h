// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace moonhalo {

class Communicator;

/// Marks rank threads of `world` as inactive for a while (they have done their part of a step and wait outside of
/// any collective): a rank that waits for one of them in a collective throws at once, as if it had ended. Any
/// thread; nothing on other backends.
void set_inactive(Communicator& world, const std::vector<int>& ranks, bool away);

/// True if the ranks of this group of threads have diverged, or were aborted: it is of no further use.
bool is_broken(Communicator& world);

/// Communicators of processes whose ranks can be suspended. This rank's call has failed: until resume it takes part
/// in no call of this world, and a rank that waits for it there gets a CommError within a moment. (Ranks are not
/// stopped.) Other worlds of the same ranks go on, so that their ranks can communicate there.
class Suspendable {
 public:
  virtual ~Suspendable() = default;
  virtual void suspend() = 0;
  /// Every rank calls it, after all of them have communicated elsewhere.
  virtual void resume() = 0;
  /// Says what all ranks of the world waited in when they were found to wait for each other, the same on all of them,
  /// and forgets it; "" if they were not, or where that is not looked for.
  virtual std::string take_deadlock() { return ""; }
  /// A rank of this communicator that is suspended, as far as this one has been notified; else -1. Does not wait.
  virtual int suspended_rank() = 0;
};

}  // namespace moonhalo
