// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/verb_cost.h"

namespace moonhalo {

/// The messages of collectives that are made of messages, over TCP and MPI (collective_rounds.h), of the rank at
/// `place` in a group of `ranks`. `bytes`: of the tensor that is reduced or broadcast, of all blocks together that are
/// gathered, scattered or swapped, which are as even as can be. `item`: bytes of an element; of 2 bytes: a half type,
/// whose sums are sent in float. A broadcast is from place 0. Of an exchange, the messages are the caller's: this gives
/// none. Not collective.
VerbCost message_cost(CommStats::Kind verb, int64_t bytes, int ranks, int place, int64_t item = 4);

/// The place whose rank takes the most rounds, and of those the most bytes. Not collective.
int slowest_place(CommStats::Kind verb, int64_t bytes, int ranks, int64_t item = 4);

/// Rounds of `bytes` each in which each rank sends one message twice as far as in the round before: as a barrier.
/// Not collective.
std::vector<VerbRound> doubling_rounds(int ranks, int64_t bytes);

}  // namespace moonhalo
