// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/verb_cost.h"

namespace moonhalo {

/// The costs of NCCL's algorithms, of which it takes the cheaper one: a ring, and for sums also a tree. `bytes` as in
/// message_cost. A sum in a ring is 2 (ranks - 1) rounds of bytes / ranks. Not collective.
std::vector<VerbCost> nccl_costs(CommStats::Kind verb, int64_t bytes, int ranks);

/// The cost of tensors that go through memory of the host: `host` is what the host's backend takes, and `bytes` are
/// copied there and back. Not collective.
VerbCost staged_cost(VerbCost host, int64_t bytes);

}  // namespace moonhalo
