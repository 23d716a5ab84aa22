// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "moonhalo/engine/forecast/tape.h"

namespace moonhalo {

/// Steps of a ring on a tape, which repeat those a period before (exchange/equal_steps.h). Nothing of this file is
/// collective.

/// A place on a tape: the numbers of events, blocks and exchanges before it.
struct TapePlace {
  size_t events = 0;
  uint32_t blocks = 0, exchanges = 0;
};

/// True if the second of two periods repeats the first, but for the peers of its exchanges: the same operators,
/// messages of the same sizes, and blocks that come and go in the same order. `places`: where they begin, and where the
/// second ends, which is the end of the tape. False if they have another number of exchanges than `steps`, exchanges of
/// several groups, or collectives.
bool equal_but_for_peers(const Tape& tape, const std::array<TapePlace, 3>& places, int64_t steps);

/// Adds the period from `begin` to `end`, the end of the tape, `times` more times, as equal_but_for_peers found it.
/// `offset_of(group, sends, step, part, later)`: of a message's peer, as in TapePart, of the exchange number `step` of
/// the period, in the one that comes `later` periods after it. Returns the group of its exchanges.
using OffsetOf = std::function<int32_t(uint32_t group, bool sends, size_t step, size_t part, int64_t later)>;
uint32_t repeat_period(Tape& tape, const TapePlace& begin, const TapePlace& end, int64_t times,
                       const OffsetOf& offset_of);

}  // namespace moonhalo
