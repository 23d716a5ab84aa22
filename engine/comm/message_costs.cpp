// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/message_costs.h"

#include <bit>
#include <cstdlib>

#include "moonhalo/engine/comm/collective_rounds.h"
#include "moonhalo/engine/comm/message_counts.h"
#include "moonhalo/engine/comm/sum_tree.h"

namespace moonhalo {
namespace {

bool is_power_of_two(int ranks) { return std::has_single_bit(static_cast<unsigned>(ranks)); }

VerbRound to_all(int ranks, int64_t bytes) {
  return {.partners = VerbRound::kAll, .messages = ranks - 1, .bytes = bytes, .reach = ranks - 1};
}

// As gather_rounds sends them.
void add_gather(VerbCost& cost, const PartList& parts, int part, int64_t item) {
  const int size = parts.size();
  const bool halves = is_power_of_two(size);
  for (int step = 1; step < size; step *= 2) {
    const PartRange range = gathered(part, halves ? step : std::min(step, size - step), size);
    int64_t elements = 0;
    for (int i = range.begin; i < range.end; ++i) elements += parts.count({i % size, i % size + 1});
    const int to = halves ? part ^ step : (part - step + size) % size;
    const int64_t reach = std::abs(parts.order[to] - parts.order[part]);
    cost.rounds.push_back({.partners = halves ? VerbRound::kPairs : VerbRound::kShift,
                           .bytes = elements * item,
                           .reach = halves ? reach : std::min<int64_t>(reach, size - reach)});
  }
}

// As ReduceRounds sends them.
void add_reduce_scatter(VerbCost& cost, const SumPlan& plan, const PartList& parts, int rank, int64_t item) {
  if (plan.direct()) {
    cost.rounds.push_back(to_all(plan.ranks(), (parts.begins.back() - parts.count({rank, rank + 1})) * item));
    return;
  }
  const int64_t partial = item == 2 ? 4 : item;
  bool own = true;
  for (const SumStep& step : plan.steps(rank)) {
    if (step.send_to >= 0) {
      cost.rounds.push_back({.partners = is_power_of_two(plan.ranks()) ? VerbRound::kPairs : VerbRound::kShift,
                             .bytes = parts.count(step.sent) * (own || step.final ? item : partial),
                             .reach = std::abs(step.send_to - rank)});
    }
    if (step.receive_from >= 0) own = false;
  }
}

VerbCost all_reduce_cost(int64_t bytes, int ranks, int place, int64_t item) {
  VerbCost cost;
  if (static_cast<size_t>(bytes) * ranks <= kGatherBytes) {
    add_gather(cost, PartList(std::vector<int64_t>(ranks, bytes)), place, 1);
    return cost;
  }
  const SumPlan plan(ranks);
  const std::vector<int64_t> shares = even_shares(bytes / item, ranks);
  const PartList parts = plan.direct() ? PartList(shares) : PartList(plan.order(), shares);
  add_reduce_scatter(cost, plan, parts, place, item);
  add_gather(cost, parts, plan.direct() ? place : plan.part_of()[place], item);
  return cost;
}

VerbCost reduce_scatter_cost(int64_t bytes, int ranks, int place, int64_t item) {
  VerbCost cost;
  const SumPlan plan(ranks);
  const std::vector<int64_t> counts = even_shares(bytes / item, ranks);
  std::vector<int64_t> sizes;
  for (const int owner : plan.order()) sizes.push_back(counts[owner]);
  add_reduce_scatter(cost, plan, plan.direct() ? PartList(counts) : PartList(plan.order(), sizes), place, item);
  return cost;
}

VerbCost all_to_all_cost(int64_t bytes, int ranks, int64_t item) {
  VerbCost cost;
  const int64_t part = bytes / item / ranks;
  if (!goes_in_rounds(ranks, part, item)) {
    cost.rounds.push_back(to_all(ranks, part * (ranks - 1) * item));
    return cost;
  }
  for (int step = 1; step < ranks; step *= 2) {
    int64_t parts = 0;
    for (int distance = step; distance < ranks; ++distance) parts += (distance & step) != 0 ? 1 : 0;
    cost.rounds.push_back({.partners = VerbRound::kShift, .bytes = parts * part * item, .reach = step});
  }
  return cost;
}

VerbCost broadcast_cost(int64_t bytes, int ranks, int place) {
  VerbCost cost;
  const int64_t messages = messages_of_broadcast(ranks, place);
  int64_t reach = std::bit_ceil(static_cast<unsigned>(place + 1));
  for (int64_t i = 0; i < messages; ++i, reach *= 2)
    cost.rounds.push_back({.partners = VerbRound::kShift, .bytes = bytes, .reach = reach});
  return cost;
}

}  // namespace

std::vector<VerbRound> doubling_rounds(int ranks, int64_t bytes) {
  std::vector<VerbRound> rounds;
  for (int step = 1; step < ranks; step *= 2)
    rounds.push_back({.partners = VerbRound::kShift, .bytes = bytes, .reach = step});
  return rounds;
}

VerbCost message_cost(CommStats::Kind verb, int64_t bytes, int ranks, int place, int64_t item) {
  if (ranks == 1) return {};
  switch (verb) {
    case CommStats::kAllReduce:
      return all_reduce_cost(bytes, ranks, place, item);
    case CommStats::kReduceScatter:
      return reduce_scatter_cost(bytes, ranks, place, item);
    case CommStats::kAllGather: {
      VerbCost cost;
      add_gather(cost, PartList(even_shares(bytes / item, ranks)), place, item);
      return cost;
    }
    case CommStats::kAllToAll:
      return all_to_all_cost(bytes, ranks, item);
    case CommStats::kBroadcast:
      return broadcast_cost(bytes, ranks, place);
    case CommStats::kBarrier:
      return {.rounds = doubling_rounds(ranks, 0)};
    default:
      return {};
  }
}

int slowest_place(CommStats::Kind verb, int64_t bytes, int ranks, int64_t item) {
  const bool differs = verb == CommStats::kAllReduce || verb == CommStats::kReduceScatter;
  if (!differs || is_power_of_two(ranks)) return 0;
  int slowest = 0;
  std::pair<size_t, int64_t> most;
  for (int place = 0; place < ranks; ++place) {
    const VerbCost cost = message_cost(verb, bytes, ranks, place, item);
    const std::pair<size_t, int64_t> mine{cost.rounds.size(), cost.bytes()};
    if (mine > most) {
      most = mine;
      slowest = place;
    }
  }
  return slowest;
}

}  // namespace moonhalo
