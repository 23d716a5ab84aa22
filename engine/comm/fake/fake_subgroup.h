// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/comm/communicator.h"

namespace moonhalo {

/// A part of the ranks of a fake communicator, in which this rank is `rank` of `ranks`. What it sends counts as sent by
/// the whole, as with the parts that split makes of others.
CommunicatorPtr make_fake_subgroup(const Communicator& whole, int rank, int ranks);

}  // namespace moonhalo
