// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moonhalo/engine/base/scoped_value.h"
#include "moonhalo/engine/base/settings.h"

namespace moonhalo {

class Communicator;

/// Sets the options of this thread (ranks may be threads) for all interval maps and returns the previous ones. They are
/// read when data moves, so existing plans follow a change. They must be equal on all ranks. If `world` is given, the
/// call is collective over it; it throws ValueError on every rank and changes nothing if the ranks pass different
/// options. Without `world`, thread ranks with different backends get an error from the communicator, and MPI ranks run
/// into the timeout.
HaloOptions set_halo(const HaloOptions& options, Communicator* world = nullptr);
/// Returns the options of this thread. Not collective.
const HaloOptions& halo_options();
/// Returns "p2p" | "all_to_all". Not collective.
const char* name(HaloBackend backend);

/// Times of this thread's exchanges that sent anything (not collective): the time from posting to arrival, and the part
/// of it in which this rank only waited (rank threads: or copied).
struct HaloTimes {
  /// The number of exchanges, and their times in seconds.
  int64_t exchanges = 0;
  double under_way = 0, waited = 0;  // seconds
  /// Returns the fraction of the time in flight that was spent on computing; 0 if nothing was sent.
  double hidden() const { return under_way > 0 ? 1 - waited / under_way : 0; }
  HaloTimes operator-(const HaloTimes& earlier) const {
    return {exchanges - earlier.exchanges, under_way - earlier.under_way, waited - earlier.waited};
  }
};
/// The times of this thread since it began; differences of two values are those of a part of the program. Not
/// collective.
HaloTimes& halo_times();

/// The events of one operator, in order: "start" and "finish" of an exchange, and the operator's own events from
/// note_halo, such as "interior" and "edges"; "ghosts" if filled ghosts were read. Empty if nothing was exchanged.
using HaloEvents = std::vector<std::string>;
/// Appends an event if this thread is recording. Not collective.
void note_halo(const char* event);
/// Records the events of this thread during its lifetime.
class RecordHalo {
 public:
  explicit RecordHalo(HaloEvents* events);

 private:
  ScopedValue<HaloEvents*> current_;
};

}  // namespace moonhalo
