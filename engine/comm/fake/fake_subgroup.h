// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// The group of `ranks` of `whole`, a fake group; this rank is one of them. What it sends counts as sent by the whole,
/// as with the parts that split makes of others.
CommunicatorPtr make_fake_subgroup(const Communicator& whole, const std::vector<int64_t>& ranks);

/// The ranks of the world that a fake group holds, in its order; of other groups none.
std::vector<int64_t> pretended_ranks(const Communicator& group);

}  // namespace moonhalo
