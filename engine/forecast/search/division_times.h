// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/forecast/search/division.h"
#include "moonhalo/engine/forecast/search/division_search.h"

namespace moonhalo {

/// Runs each division for real, in `rounds` rounds: in a round each one is built, takes two steps that are not timed,
/// and then at least 2 steps, or as many as take 0.05 s, between two barriers. One model is there at a time. The rounds
/// go forward and backward through the divisions by turns, so that a host that becomes slower or faster does so for all
/// of them.
/// Returns the seconds of a step by rank 0's clock, of each division and round. Throws what `build` and its step throw,
/// and ValueError if there is no step. Collective over `world`.
std::vector<std::vector<double>> time_divisions(Communicator& world, const BuildDivided& build,
                                                const std::vector<Division>& divisions, int rounds);

}  // namespace moonhalo
