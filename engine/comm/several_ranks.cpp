// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/several_ranks.h"

#include "moonhalo/engine/base/rank_context.h"

namespace moonhalo {
namespace {

struct SeveralRanks {
  std::optional<SteadyTime> since;
};
const RankLocal<SeveralRanks> several_ranks;
const SteadyTime loaded_at = std::chrono::steady_clock::now();

}  // namespace

std::optional<SteadyTime> several_ranks_since() { return several_ranks->since; }

void note_several_ranks(SteadyTime since) { several_ranks->since = since; }

SteadyTime library_loaded_at() { return loaded_at; }

}  // namespace moonhalo
