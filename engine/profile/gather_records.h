// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// Brings the records of all ranks to rank 0, with the offsets to its clock; empty on the others. In a fake world this
/// rank's is all there is. Where one rank fails, all throw its error. Nothing of it is counted in comm_stats.
/// Collective over `world`.
std::vector<RankRecord> gather_records(Communicator& world, RankRecord mine);

/// Returns what must be added to this rank's monotonic clock to get that of rank 0: 0 if both run on one system, else
/// by half of the shortest of 16 round trips. Collective over `world`.
int64_t clock_offset(Communicator& world);

/// Rank 0's text, on all ranks; in a fake world this rank's. Collective over `world`.
std::string broadcast_text(Communicator& world, const std::string& text);

}  // namespace moonhalo
