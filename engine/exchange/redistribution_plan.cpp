// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution_plan.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "moonhalo/engine/base/box_text.h"
#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {
namespace {

bool linear(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; }
bool commute(ReduceOp a, ReduceOp b) { return a == b || (linear(a) && linear(b)); }

// True if the order of reduction matters among the Partial dims.
bool order_matters(const ShardSpec& spec) {
  std::vector<ReduceOp> ops;
  for (const auto& op : spec.layout().partials) {
    if (op) ops.push_back(*op);
  }
  return std::any_of(ops.begin(), ops.end(), [&](ReduceOp op) { return !commute(op, ops.front()); });
}

std::vector<int64_t> joined(std::vector<int64_t> some, const std::vector<int64_t>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

// Ranks by their coordinates on some mesh dims.
std::map<std::vector<int64_t>, std::vector<int64_t>> grouped(const DeviceMesh& mesh,
                                                             const std::vector<int64_t>& mesh_dims) {
  std::map<std::vector<int64_t>, std::vector<int64_t>> groups;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    std::vector<int64_t> key;
    for (const int64_t m : mesh_dims) key.push_back(mesh.coordinate(rank, m));
    groups[key].push_back(rank);
  }
  return groups;
}

// The other mesh dims that have more than one rank.
std::vector<int64_t> others(const DeviceMesh& mesh, const std::vector<int64_t>& mesh_dims) {
  std::vector<int64_t> rest;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (mesh.size(m) > 1 && std::find(mesh_dims.begin(), mesh_dims.end(), m) == mesh_dims.end()) rest.push_back(m);
  }
  return rest;
}

std::vector<int64_t> ranks_in_target(const ShardSpec& from, const ShardSpec& to) {
  const DeviceMesh &mesh = *from.mesh(), &target = *to.mesh();
  std::vector<int64_t> ranks(mesh.size());
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  if (&mesh != &target) ranks = target.ranks_of(mesh);
  TORCH_CHECK_VALUE(
      !ranks.empty(), "redistribute: the target mesh does not hold the same ranks as the tensor's mesh", "\n  have  ",
      from.to_string(), " (", mesh.size(), " ranks), target ", target.to_string(), " (", target.size(), " ranks)",
      "\n  fix   use a mesh of the same ranks, made of the same world, or full_tensor() and ", "distribute_tensor");
  return ranks;
}

// Decides what becomes of each mesh dim.
void classify_mesh_dims(RedistributionPlan& plan) {
  const ShardSpec &from = *plan.from, &to = *plan.to;
  const DeviceMesh &mesh = *from.mesh(), &target = *to.mesh();
  const bool nested = order_matters(from) || order_matters(to);
  const auto kept = [&](int64_t m) {
    return &mesh == &target && from.partial(m) && from.partial(m) == to.partial(m) &&
           (!nested || from.layout().partials == to.layout().partials);
  };
  for (const int64_t m : others(mesh, {})) {
    if (kept(m)) {
      plan.partial_kept.push_back(m);
    } else if (from.partial(m)) {
      plan.partial_reduced.push_back(m);
    } else if (!from.layout().uses(m)) {
      plan.replicated_dims.push_back(m);
    }
  }
  for (const int64_t m : others(target, {})) {
    // Averages begin with the value everywhere: an addend of n times the value might leave the range of the dtype.
    if (!to.partial(m) || to.partial(m) == ReduceOp::kAvg || kept(m)) continue;
    (nested ? plan.partial_seeded : plan.partial_started).push_back(m);
  }
}

// Cuts `box` in equal shares for these ranks, along the first dim that has enough rows for all of them.
void share_evenly(const Box& box, const std::vector<int64_t>& ranks, std::vector<Box>& kept) {
  const auto shares = static_cast<int64_t>(ranks.size());
  int64_t dim = 0;
  for (int64_t d = 0; d < box.ndim() && box[dim].size() < shares; ++d) {
    if (box[d].size() > box[dim].size()) dim = d;
  }
  int64_t begin = box[dim].begin;
  const auto sizes = balanced_sizes(box[dim].size(), shares);
  for (int64_t i = 0; i < shares; ++i) {
    kept[ranks[i]] = box;
    kept[ranks[i]][dim] = {begin, begin + sizes[i]};
    begin += sizes[i];
  }
}

// Shares `box`, of which every one of `ranks` holds an addend (or a copy), out among them: an element goes to a rank
// that requires it if there is one, evenly among several. The required boxes are blocks of a grid: along each dim
// equal or apart.
void share_out(const Box& box, std::vector<int64_t> ranks, const std::vector<Box>& required, std::vector<Box>& kept) {
  const auto wants = [&](int64_t rank) { return !required[rank].intersect(box).empty(); };
  if (std::none_of(ranks.begin(), ranks.end(), wants)) return share_evenly(box, ranks, kept);
  for (const int64_t rank : ranks) {
    kept[rank] = box;
    for (int64_t d = 0; d < box.ndim(); ++d) kept[rank][d].end = box[d].begin;
  }
  std::erase_if(ranks, [&](int64_t rank) { return !wants(rank); });
  for (int64_t d = 0; d < box.ndim(); ++d) {
    std::map<int64_t, std::vector<int64_t>> by_begin;
    for (const int64_t rank : ranks) by_begin[std::max(required[rank][d].begin, box[d].begin)].push_back(rank);
    if (by_begin.size() < 2) continue;
    Box part = box;
    for (auto group = by_begin.begin(); group != by_begin.end(); ++group) {
      const auto next = std::next(group);
      part[d].end = next == by_begin.end() ? box[d].end : next->first;
      share_out(part, group->second, required, kept);
      part[d].begin = part[d].end;
    }
    return;
  }
  share_evenly(box, ranks, kept);
}

void find_boxes(RedistributionPlan& plan) {
  for (int64_t rank = 0; rank < plan.from->mesh()->size(); ++rank) {
    plan.box_after_reduce.push_back(block_box(*plan.from, rank));
    plan.required_box.push_back(block_box(*plan.to, plan.rank_in_target[rank]));
  }
}

// Decides how the Partials that end are summed, and where the sums are then.
void plan_reduction(RedistributionPlan& plan) {
  if (plan.partial_reduced.empty()) return;
  const ShardSpec& from = *plan.from;
  const DeviceMesh& mesh = *from.mesh();
  const std::vector<int64_t>& reduced = plan.partial_reduced;
  plan.at_once = others(mesh, reduced).empty() && std::all_of(reduced.begin(), reduced.end(), [&](int64_t m) {
                   return from.partial(m) == from.partial(reduced[0]);
                 });
  // Copies could share the work of a sum among them; that pays from three addends on.
  const bool alone = reduced.size() == 1 && (plan.replicated_dims.empty() || mesh.size(reduced[0]) == 2);
  const bool fewer_elements_than_ranks = from.global_numel() < mesh.size();
  const bool in_place =
      plan.keeps_blocks || (plan.box_after_reduce == plan.required_box && plan.partial_started.empty());
  if (fewer_elements_than_ranks || (in_place && (plan.at_once || alone))) {
    plan.reduction = RedistributionPlan::Reduction::kAllReduce;
    plan.replicated_dims = joined(std::move(plan.replicated_dims), reduced);
    return;
  }
  plan.reduction = RedistributionPlan::Reduction::kReduceScatter;
  if (plan.keeps_blocks) find_boxes(plan);
  plan.keeps_blocks = false;
  const std::vector<int64_t> sharing = joined(reduced, plan.replicated_dims);
  for (const auto& [key, ranks] : grouped(mesh, others(mesh, sharing)))
    share_out(Box(plan.box_after_reduce[ranks[0]]), ranks, plan.required_box, plan.box_after_reduce);
  plan.replicated_dims.clear();
}

// Where a Partial begins, an element stands on the coordinates where most of the ranks that want it hold it already;
// those of its first owner, if they are among the best. It stays if all ranks that want it there hold it.
void choose_holders(RedistributionPlan& plan) {
  std::map<std::pair<int64_t, Box>, std::map<std::vector<int64_t>, int64_t>> holders;
  std::map<Box, int64_t> wanted;  // by how many ranks, at as many of all coordinates
  for (int64_t rank = 0; rank < plan.from->mesh()->size(); ++rank) {
    ++holders[{plan.first_owner[rank], plan.required_box[rank]}][plan.started_at(rank)];
    ++wanted[plan.required_box[rank]];
  }
  int64_t coordinates_of_all = 1;
  for (const int64_t m : plan.partial_started) coordinates_of_all *= plan.to->mesh()->size(m);
  for (const int64_t m : plan.partial_kept) coordinates_of_all *= plan.from->mesh()->size(m);
  std::map<int64_t, int64_t> staying;  // elements, by first owner
  for (auto& [owner_and_box, counts] : holders) {
    const auto& [owner, box] = owner_and_box;
    std::vector<int64_t> chosen = plan.started_at(owner);
    int64_t most = counts[chosen];
    for (const auto& [coordinates, count] : counts) {
      if (count <= most) continue;
      most = count;
      chosen = coordinates;
    }
    const bool stays = most * coordinates_of_all == wanted[box];
    staying[owner] += stays ? plan.box_after_reduce[owner].intersect(box).numel() : 0;
    plan.chosen_holder[owner_and_box] = std::move(chosen);
  }
  plan.stays = std::all_of(staying.begin(), staying.end(), [&](const auto& owner_and_count) {
    return owner_and_count.second == plan.box_after_reduce[owner_and_count.first].numel();
  });
}

// Plans the moves that are left once the sums are made. Copies serve their own ranks.
void plan_moves(RedistributionPlan& plan) {
  if (plan.keeps_blocks) return;
  const DeviceMesh& mesh = *plan.from->mesh();
  plan.moves = plan.box_after_reduce != plan.required_box || !plan.partial_started.empty();
  plan.first_owner.resize(mesh.size());
  for (const auto& [key, ranks] : grouped(mesh, others(mesh, plan.replicated_dims))) {
    for (const int64_t rank : ranks) plan.first_owner[rank] = ranks[0];
  }
  if (!plan.partial_started.empty()) choose_holders(plan);
}

}  // namespace

RedistributionPlan plan_redistribution(const SpecPtr& from, const SpecPtr& to) {
  TORCH_INTERNAL_ASSERT(from->global_shape() == to->global_shape(), "redistribute changes a shape from ",
                        from->to_string(), " to ", to->to_string());
  RedistributionPlan plan{from, to, ranks_in_target(*from, *to)};
  classify_mesh_dims(plan);
  plan.keeps_blocks =
      from->mesh() == to->mesh() && from->layout().cuts == to->layout().cuts && plan.partial_started.empty();
  if (!plan.keeps_blocks) find_boxes(plan);
  plan_reduction(plan);
  plan_moves(plan);
  return plan;
}

std::vector<int64_t> RedistributionPlan::reduce_order() const {
  std::vector<int64_t> order = partial_reduced;
  if (!at_once) std::reverse(order.begin(), order.end());
  return order;
}

std::vector<int64_t> RedistributionPlan::addend_holders() const {
  const DeviceMesh& mesh = *from->mesh();
  const std::vector<int64_t> apart = others(mesh, partial_reduced), order = reduce_order();
  std::vector<int64_t> here;
  for (const int64_t m : apart) here.push_back(mesh.coordinate(m));
  std::vector<int64_t> ranks = grouped(mesh, apart).at(here);
  std::sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) {
    for (const int64_t m : order) {
      if (mesh.coordinate(a, m) != mesh.coordinate(b, m)) return mesh.coordinate(a, m) < mesh.coordinate(b, m);
    }
    return false;
  });
  return ranks;
}

std::vector<int64_t> RedistributionPlan::started_at(int64_t rank) const {
  std::vector<int64_t> coordinates;
  for (const int64_t m : partial_started) coordinates.push_back(to->mesh()->coordinate(rank_in_target[rank], m));
  return coordinates;
}

// On one mesh, the ranks that hold an element are as many at all coordinates where they are several: so it stands on
// its first owner's.
std::vector<int64_t> RedistributionPlan::same_coordinates() const {
  if (stays) return others(*from->mesh(), {});
  const std::vector<int64_t> same = joined(partial_kept, replicated_dims);
  return from->mesh() == to->mesh() ? joined(same, partial_started) : same;
}

bool RedistributionPlan::serves(int64_t owner, int64_t user) const {
  const DeviceMesh& mesh = *from->mesh();
  const auto beside = [&](int64_t m) { return mesh.coordinate(owner, m) == mesh.coordinate(user, m); };
  if (!std::all_of(partial_kept.begin(), partial_kept.end(), beside) ||
      !std::all_of(replicated_dims.begin(), replicated_dims.end(), beside)) {
    return false;
  }
  if (partial_started.empty()) return true;
  const auto chosen = chosen_holder.find({first_owner[owner], required_box[user]});
  return (chosen == chosen_holder.end() ? started_at(first_owner[owner]) : chosen->second) == started_at(user);
}

std::string RedistributionPlan::to_string() const {
  std::ostringstream text;
  text << "from " << from->to_string() << "\nto   " << to->to_string();
  if (reduction != Reduction::kNone) {
    text << (reduction == Reduction::kAllReduce ? "\nall_reduce" : "\nreduce_scatter") << " over";
    if (at_once) text << " the mesh (" << name(*from->partial(partial_reduced[0])) << ")";
    for (const int64_t m : reduce_order()) {
      if (!at_once) text << " " << from->mesh()->names()[m] << " (" << name(*from->partial(m)) << ")";
    }
  }
  for (int64_t user = 0; user < from->mesh()->size(); ++user) {
    text << "\nrank " << user << " " << box_string(keeps_blocks ? block_box(*from, user) : box_after_reduce[user]);
    if (!moves) continue;
    text << " -> " << box_string(required_box[user]);
    std::string owners;
    for (int64_t owner = 0; owner < from->mesh()->size(); ++owner) {
      if (!serves(owner, user) || box_after_reduce[owner].intersect(required_box[user]).empty()) continue;
      owners += (owners.empty() ? "" : ", ") + std::to_string(owner);
    }
    text << " from " << (owners.empty() ? "none" : owners);
  }
  return text.str();
}

}  // namespace moonhalo
