// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "moonhalo/engine/profile/rank_record.h"

namespace moonhalo {

/// The records in the trace event format of Chrome, which Perfetto and chrome://tracing open: a process for each rank,
/// with a row for backward, one for communication, one for reading and one for all else; arrows from forward calls to
/// their backward functions, and from messages to the waits for them. Times are microseconds since the first event.
std::string chrome_trace(const std::vector<RankRecord>& ranks);

/// The records as collapsed stacks, "rank 0;step;Net;aten::mm 120" for 120 us without what is called within: for
/// flamegraph.pl, speedscope and others.
std::string flame_stacks(const std::vector<RankRecord>& ranks);

}  // namespace moonhalo
