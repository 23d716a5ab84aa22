// SPDX-License-Identifier: Apache-2.0
// The cost of a collective in numbers that no machine has a part in: messages, bytes, waits. Each backend has a
// function beside its code that gives those of its own algorithm (message_costs.h, mpi/mpi_costs.h,
// threads/thread_costs.h, device/device_costs.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace moonhalo {

/// One round of a rank: messages that leave at the same time, and as many that arrive.
struct VerbRound {
  /// The ranks that a rank sends to, by places in the group: its own place with the bits of `reach` changed; its own
  /// plus or minus `reach`; the next one in a ring, of which a device library runs one through each link; all others.
  enum Partners : uint8_t { kPairs, kShift, kRing, kAll };
  Partners partners = kPairs;
  int64_t messages = 1;
  int64_t bytes = 0;  ///< of all messages that the rank sends in this round
  int64_t reach = 1;
};

/// The cost of a call of a verb for one rank.
struct VerbCost {
  std::vector<VerbRound> rounds;  ///< one after another
  std::vector<VerbRound> beside;  ///< at the same time as these: messages that compare the calls of the ranks
  int64_t barriers = 0;           ///< waits of rank threads for each other
  int64_t copied = 0;             ///< bytes that this rank reads and writes in memory
  int64_t staged = 0;             ///< bytes that go between a device and its host

  int64_t messages() const {
    int64_t all = 0;
    for (const VerbRound& round : rounds) all += round.messages;
    return all;
  }
  int64_t bytes() const {
    int64_t all = 0;
    for (const VerbRound& round : rounds) all += round.bytes;
    return all;
  }
};

}  // namespace moonhalo
