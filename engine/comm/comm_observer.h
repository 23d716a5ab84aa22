// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "moonhalo/engine/comm/traffic.h"

namespace moonhalo {

class Communicator;
class Work;

/// Is called around what this thread's communicators do in groups of several ranks, for profiles. `owner` identifies a
/// begin and its end, which come in the order of scopes. Not collective.
class CommObserver {
 public:
  /// A message of an exchange: its `bytes`.
  struct Part {
    int peer;  ///< of the group
    int64_t bytes;
  };
  /// A call of a verb.
  struct Call {
    int verb;                                     ///< a CommStats::Kind
    int64_t bytes;                                ///< that this rank sends, as CommStats counts them
    uint64_t group;                               ///< the same number on all its ranks, another one for each group
    int rank, size;                               ///< of the group
    const Communicator* ranks = nullptr;          ///< the group
    std::vector<Part> sends = {}, receives = {};  ///< of an exchange
    int64_t messages = 0;                         ///< that this rank sends, as CommStats counts them
    int64_t data = 0;     ///< bytes of the tensor that is reduced or broadcast, of all blocks of a gather, of the own
                          ///< parts of an exchange or all_to_all
    int item = 1;         ///< bytes of an element of it
    int root = 0;         ///< of a broadcast
    bool counted = true;  ///< false: CommStats leaves it out (ScopedStatsPause)
    Traffic traffic = Traffic::kOther;  ///< why it is called
  };
  virtual ~CommObserver() = default;
  /// A call of a verb begins, or the posting of an exchange. Returns a number for begin_wait.
  virtual uint32_t begin_call(const void* owner, const Call& call) = 0;
  /// This rank waits for the exchange `call`.
  virtual void begin_wait(const void* owner, uint32_t call) = 0;
  /// The call or wait that began last for this owner has ended.
  virtual void end_call(const void* owner) = 0;
};

/// Sets the observer of this thread, null for none, and returns the one before. Not collective.
CommObserver* set_comm_observer(CommObserver* observer);
/// The observer of this thread, or null. Not collective.
CommObserver* comm_observer();

/// The same work, whose waits are passed on to `observer` while it is the observer of this thread. Not
/// collective.
std::unique_ptr<Work> observed_work(std::unique_ptr<Work> work, CommObserver* observer, uint32_t call);

}  // namespace moonhalo
