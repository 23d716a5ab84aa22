// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "moonhalo/engine/exchange/redistribution.h"

namespace moonhalo {

/// The redistribution from one spec to another, planned once per thread; the thread remembers a bounded number of them.
/// Between two meshes the first one ever planned is collective.
std::shared_ptr<const Redistribution> cached_redistribution(const SpecPtr& from, const SpecPtr& to);
int64_t cached_redistribution_count();
/// Forgets all of this thread (and lets go of their meshes).
void clear_redistribution_cache();

}  // namespace moonhalo
