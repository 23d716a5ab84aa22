// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The base of all backends: what one may offer beyond the collectives. The defaults are those of a backend that has
/// nothing of the kind, so callers need not ask which one it is:
///
///     backend_of(world).suspend();    MPI and TCP tell the other ranks; rank threads do nothing
class CommunicatorBackend : public Communicator {
 public:
  // Time

  /// Communicator::set_timeout of all groups of this world on this rank; later ones inherit it. Not collective.
  virtual void set_time_limit(std::chrono::milliseconds limit) { set_timeout(limit); }

  // Threads

  /// True if a thread may use this communicator while other threads of the program use the library that carries its
  /// messages.
  virtual bool any_thread() const { return true; }

  // Ranks that fail: any thread may call these, also while this rank waits outside of a collective, such as for its
  // device.

  /// As abort(); processes end with `status`, or with that of a rank that has left before with a status other than 0.
  virtual void abort_with_status(const std::string& reason, int /*status*/) { abort(reason); }
  /// This rank takes part in nothing more: ranks that wait for it are notified within a moment.
  virtual void report_failure(const std::string& /*reason*/) {}
  /// This rank has begun call `number` of those that the devices of this group make among themselves, which all its
  /// ranks number in the same way; 0 says that they make any. Its own thread, before it ends.
  virtual void note_device_call(uint64_t /*number*/) {}
  /// Says why some rank takes no part in call `number` of the devices: it has failed, or has ended before it; "" as far
  /// as is known. Does not wait.
  virtual std::string peer_failure(uint64_t /*number*/) { return ""; }

  // Ranks that are suspended: a rank's call has failed, and until resume it takes part in no call of this world. A rank
  // that waits for it there gets a CommError within a moment. (Ranks are not stopped.) Other worlds of the same ranks
  // go on, so that their ranks can communicate there.

  virtual void suspend() {}
  /// Every rank calls it, after all of them have communicated elsewhere.
  virtual void resume() {}
  /// Says what all ranks of the world waited in when they were found to wait for each other, the same on all of them,
  /// and forgets it; "" if they were not, or where that is not looked for.
  virtual std::string take_deadlock() { return ""; }
  /// A rank of this communicator that is suspended, as far as this one has been notified; else -1. Does not wait.
  virtual int suspended_rank() { return -1; }

  // Rank threads

  /// Marks rank threads as inactive for a while (they have done their part of a step and wait outside of any
  /// collective): a rank that waits for one of them in a collective throws at once, as if it had ended. Any thread.
  virtual void set_inactive(const std::vector<int>& /*ranks*/, bool /*inactive*/) {}
  /// True if the rank threads of this group have diverged, or were aborted: it is of no further use.
  virtual bool is_broken() { return false; }

  // Calls that differ

  /// Turns the comparison of calls (check_calls.h) on or off and returns the previous setting. Collective.
  virtual bool set_check_calls(bool /*on*/) { return true; }
  /// Returns true if all ranks of this group call it in a CallScope with the same tag, and nullopt if calls are not
  /// compared. Costs a barrier and a message of a few bytes. Collective.
  virtual std::optional<bool> same_scope() { return std::nullopt; }

 protected:
  using Communicator::Communicator;
};

/// The backend of a communicator: all of them derive from it.
CommunicatorBackend& backend_of(Communicator& group);

}  // namespace moonhalo
