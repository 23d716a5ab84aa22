// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace moonhalo {

class Communicator;

/// Rank threads of `world` that take part in nothing for a while (they have done their part of a step and wait outside
/// of any collective):
/// a rank that waits for one of them in a collective throws at once, as if it had ended. Any thread; nothing on other
/// backends.
void set_away(Communicator& world, const std::vector<int>& ranks, bool away);

/// Whether the ranks of this group of threads have parted ways, or were aborted: it is of no further use.
bool is_broken(Communicator& world);

}  // namespace moonhalo
