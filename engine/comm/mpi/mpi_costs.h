// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/verb_cost.h"

namespace moonhalo {

/// The cost over MPI, as message_cost, of the slowest rank. With `checks`, 24 bytes are reduced over the ranks beside
/// each call, exchanges included (mpi_group.h); a barrier is that alone. The messages of MPI's own broadcast, reduction
/// and barrier are its choice: a tree and doubling rounds are assumed. Not collective.
VerbCost mpi_cost(CommStats::Kind verb, int64_t bytes, int ranks, int64_t item = 4, bool checks = true);

}  // namespace moonhalo
