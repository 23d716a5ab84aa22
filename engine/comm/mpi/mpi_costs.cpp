// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/mpi/mpi_costs.h"

#include "moonhalo/engine/comm/message_costs.h"

namespace moonhalo {
namespace {

constexpr int64_t kCheckBytes = 24;

}  // namespace

VerbCost mpi_cost(CommStats::Kind verb, int64_t bytes, int ranks, int64_t item, bool checks) {
  if (ranks == 1) return {};
  VerbCost cost = message_cost(verb, bytes, ranks, slowest_place(verb, bytes, ranks, item), item);
  if (!checks) return cost;
  cost.beside = doubling_rounds(ranks, kCheckBytes);
  if (verb == CommStats::kBarrier) cost.rounds.clear();
  return cost;
}

}  // namespace moonhalo
