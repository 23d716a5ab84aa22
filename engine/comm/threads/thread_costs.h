// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/verb_cost.h"

namespace moonhalo {

/// The cost of ranks that are threads: no messages, but barriers, and reads of the other ranks' tensors
/// (thread_communicator.cpp). `bytes` as in message_cost; of an exchange the bytes that this rank receives, which it
/// copies while it waits. Not collective.
VerbCost thread_cost(CommStats::Kind verb, int64_t bytes, int ranks);

}  // namespace moonhalo
