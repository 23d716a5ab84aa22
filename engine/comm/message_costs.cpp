// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/message_costs.h"

#include <algorithm>
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
    // Those from the last part on to the first are two runs.
    const int64_t elements =
        parts.count({range.begin, std::min(range.end, size)}) + parts.count({0, std::max(range.end - size, 0)});
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

// The messages of the ranks of one all_reduce or reduce_scatter. To make the plan of a sum takes as long as there are
// ranks, so all places share it.
class SumCosts {
 public:
  SumCosts(CommStats::Kind verb, int64_t bytes, int ranks, int64_t item)
      : gathers_(verb == CommStats::kAllReduce),
        short_(gathers_ && static_cast<size_t>(bytes) * ranks <= kGatherBytes),
        item_(short_ ? 1 : item),
        plan_(ranks),
        parts_(parts(bytes)) {}

  VerbCost at(int place) const {
    VerbCost cost;
    if (!short_) add_reduce_scatter(cost, plan_, parts_, place, item_);
    if (gathers_) add_gather(cost, parts_, short_ || plan_.direct() ? place : plan_.part_of()[place], item_);
    return cost;
  }

 private:
  PartList parts(int64_t bytes) const {
    const int ranks = plan_.ranks();
    if (short_) return PartList(std::vector<int64_t>(ranks, bytes));
    const std::vector<int64_t> shares = even_shares(bytes / item_, ranks);
    if (plan_.direct()) return PartList(shares);
    if (gathers_) return PartList(plan_.order(), shares);
    std::vector<int64_t> sizes;
    for (const int owner : plan_.order()) sizes.push_back(shares[owner]);
    return PartList(plan_.order(), sizes);
  }

  bool gathers_, short_;
  int64_t item_;
  SumPlan plan_;
  PartList parts_;
};

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
    case CommStats::kReduceScatter:
      return SumCosts(verb, bytes, ranks, item).at(place);
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
  const SumCosts costs(verb, bytes, ranks, item);
  int slowest = 0;
  std::pair<size_t, int64_t> most;
  for (int place = 0; place < ranks; ++place) {
    const VerbCost cost = costs.at(place);
    const std::pair<size_t, int64_t> mine{cost.rounds.size(), cost.bytes()};
    if (mine > most) {
      most = mine;
      slowest = place;
    }
  }
  return slowest;
}

}  // namespace moonhalo
