// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// Sums over a tape. Nothing of it is collective.

/// Calls, messages and bytes of one verb, as CommStats counts them.
struct VerbCount {
  int64_t calls = 0, messages = 0, bytes = 0;
  auto operator<=>(const VerbCount&) const = default;
};
using VerbCounts = std::array<VerbCount, 7>;  ///< by Verb

/// The counts of what the rank that recorded the tape has sent.
VerbCounts recorded_counts(const Tape& tape);
/// The counts of `rank`, which is of the kind that the tape stands for: its place in the groups may be another one.
VerbCounts counts_of(const Tape& tape, int64_t rank);
/// The counts of every rank. Takes as long as there are events, and ranks times different calls.
std::vector<VerbCounts> counts_of_ranks(const RankTapes& tapes);
/// The sum of all verbs.
VerbCount total(const VerbCounts& counts);

/// The peak of live memory within the step.
struct TapePeak {
  /// Bytes of the blocks that were made in a module and a part of the step; `before`: before the step.
  struct Held {
    uint32_t module = 0;
    Phase phase = Phase::kScript;
    bool before = false;
    int64_t bytes = 0;
  };
  int64_t bytes = 0;
  uint32_t module = 0;           ///< that ran then
  Phase phase = Phase::kScript;  ///< the part of the step then
  std::vector<Held> held;        ///< the largest first
};
TapePeak peak_of(const Tape& tape);

/// The names of kernels whose work is not known.
std::set<std::string> unknown_work(const Tape& tape);

/// "module blocks.0.fc, forward"; "the optimizer"; "before the step".
std::string place_text(const Tape& tape, uint32_t module, Phase phase);

}  // namespace moonhalo
