// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/several_ranks.h"

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

const RankLocal<std::optional<SteadyTime>> since_of_rank;
const SteadyTime loaded_at = std::chrono::steady_clock::now();

}  // namespace

std::optional<SteadyTime> several_ranks_since() { return *since_of_rank; }

void note_several_ranks(SteadyTime since) { *since_of_rank = since; }

SteadyTime library_loaded_at() { return loaded_at; }

}  // namespace moonhalo
