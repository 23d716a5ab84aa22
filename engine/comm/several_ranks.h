// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

namespace moonhalo {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Returns a time before which no other rank of this rank's world did anything; nothing if it has no other ranks. Not
/// collective.
std::optional<SteadyTime> several_ranks_since();
/// Notes that this thread is a rank of a world of several.
void note_several_ranks(SteadyTime since);
/// Returns when this library was loaded: processes become ranks of one world later.
SteadyTime library_loaded_at();

}  // namespace moonhalo
