// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/device_costs.h"

#include "moonhalo/engine/comm/message_counts.h"

namespace moonhalo {
namespace {

VerbCost ring_cost(int rounds, int64_t bytes) {
  return {.rounds = std::vector<VerbRound>(rounds, {.partners = VerbRound::kRing, .bytes = bytes})};
}

// Up to a root and down again: pieces follow each other, so all of the bytes pass the slowest link twice, and each
// round adds its latency.
VerbCost tree_cost(int ranks, int64_t bytes) {
  VerbCost cost;
  const int levels = rounds_of(ranks);
  for (int direction = 0; direction < 2; ++direction) {
    for (int level = 0; level < levels; ++level) {
      cost.rounds.push_back(
          {.partners = VerbRound::kRing, .bytes = level == levels - 1 ? bytes : 0, .reach = int64_t{1} << level});
    }
  }
  return cost;
}

}  // namespace

std::vector<VerbCost> nccl_costs(CommStats::Kind verb, int64_t bytes, int ranks) {
  if (ranks == 1) return {{}};
  const int64_t part = bytes / ranks;
  switch (verb) {
    case CommStats::kAllReduce:
      return {ring_cost(2 * (ranks - 1), part), tree_cost(ranks, bytes)};
    case CommStats::kAllGather:
    case CommStats::kReduceScatter:
      return {ring_cost(ranks - 1, part)};
    case CommStats::kAllToAll:
      return {
          {.rounds = {
               {.partners = VerbRound::kAll, .messages = ranks - 1, .bytes = part * (ranks - 1), .reach = ranks - 1}}}};
    case CommStats::kBroadcast: {
      // Pieces follow each other around the ring.
      VerbCost cost = ring_cost(ranks - 1, 0);
      cost.rounds.front().bytes = bytes;
      return {cost};
    }
    case CommStats::kBarrier:
      return {ring_cost(2 * (ranks - 1), 0), tree_cost(ranks, 0)};
    default:
      return {{}};
  }
}

VerbCost staged_cost(VerbCost host, int64_t bytes) {
  host.staged = 2 * bytes;
  return host;
}

}  // namespace moonhalo
