// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"

namespace moonhalo {
namespace {

template <typename T>
at::Scalar worst(bool of_max) {
  return of_max ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
}

// The value that changes nothing when it is reduced with others. There is none for avg.
at::Scalar neutral(ReduceOp op, at::ScalarType dtype) {
  if (op == ReduceOp::kSum) return 0;
  if (op == ReduceOp::kProduct) return 1;
  const bool of_max = op == ReduceOp::kMax;
  switch (dtype) {
    case at::kBool:
      return !of_max;
    case at::kByte:
      return worst<uint8_t>(of_max);
    case at::kChar:
      return worst<int8_t>(of_max);
    case at::kShort:
      return worst<int16_t>(of_max);
    case at::kInt:
      return worst<int32_t>(of_max);
    case at::kLong:
      return worst<int64_t>(of_max);
    default:
      return of_max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
}

bool linear(ReduceOp op) { return op == ReduceOp::kSum || op == ReduceOp::kAvg; }
bool commute(ReduceOp a, ReduceOp b) { return a == b || (linear(a) && linear(b)); }

// Whether the order of reduction matters among the Partial dims.
bool order_matters(const ShardSpec& spec) {
  std::vector<ReduceOp> ops;
  for (const auto& op : spec.layout().partials) {
    if (op) ops.push_back(*op);
  }
  return std::any_of(ops.begin(), ops.end(), [&](ReduceOp op) { return !commute(op, ops.front()); });
}

// Shares `box`, of which every one of `ranks` holds an addend (or a copy), out among them: an element goes to a rank
// that wants it if there is one, evenly among several. The wanted boxes are blocks of a grid: along each dim equal or
// apart.
void share_out(const Box& box, std::vector<int64_t> ranks, const std::vector<Box>& wanted, std::vector<Box>& kept) {
  const auto wants = [&](int64_t rank) { return !wanted[rank].intersect(box).empty(); };
  if (std::any_of(ranks.begin(), ranks.end(), wants)) {
    for (const int64_t rank : ranks) {
      kept[rank] = box;
      for (int64_t d = 0; d < box.ndim(); ++d) kept[rank][d].end = box[d].begin;
    }
    ranks.erase(std::remove_if(ranks.begin(), ranks.end(), [&](int64_t rank) { return !wants(rank); }), ranks.end());
    for (int64_t d = 0; d < box.ndim(); ++d) {
      std::map<int64_t, std::vector<int64_t>> by_begin;
      for (const int64_t rank : ranks) by_begin[std::max(wanted[rank][d].begin, box[d].begin)].push_back(rank);
      if (by_begin.size() < 2) continue;
      Box part = box;
      for (auto group = by_begin.begin(); group != by_begin.end(); ++group) {
        const auto next = std::next(group);
        part[d].end = next == by_begin.end() ? box[d].end : next->first;
        share_out(part, group->second, wanted, kept);
        part[d].begin = part[d].end;
      }
      return;
    }
  }
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

}  // namespace

Redistribution::Redistribution(SpecPtr from, SpecPtr to) : from_(std::move(from)), to_(std::move(to)) {
  TORCH_INTERNAL_ASSERT(from_->global_shape() == to_->global_shape(), "redistribute changes a shape from ",
                        from_->to_string(), " to ", to_->to_string());
  const DeviceMesh &mesh = *from_->mesh(), &target = *to_->mesh();
  const bool same_mesh = &mesh == &target;
  std::vector<int64_t> there(mesh.size());  // rank in the target mesh
  std::iota(there.begin(), there.end(), int64_t{0});
  if (!same_mesh) there = target.ranks_of(mesh);
  TORCH_CHECK_VALUE(!there.empty(), "redistribute: the target mesh does not hold the same ranks as the tensor's mesh",
                    "\n  have  ", from_->to_string(), " (", mesh.size(), " ranks), target ", target.to_string(), " (",
                    target.size(), " ranks)", "\n  fix   use a mesh of the same ranks, made of the same world, or full_tensor() and ",
                    "distribute_tensor");

  const bool mixed = order_matters(*from_) || order_matters(*to_);
  std::vector<int64_t> summed, apart, fixed;  // mesh dims: Partial that ends, copies, and Partial that stays
  std::vector<int64_t> begun;                 // of the target mesh: Partial that begins
  const auto stays = [&](int64_t m) {
    return same_mesh && from_->partial(m) && from_->partial(m) == to_->partial(m) &&
           (!mixed || from_->layout().partials == to_->layout().partials);
  };
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (mesh.size(m) == 1) continue;
    if (stays(m)) {
      fixed.push_back(m);
    } else if (from_->partial(m)) {
      summed.push_back(m);
    } else if (!from_->layout().uses(m)) {
      apart.push_back(m);
    }
  }
  for (int64_t m = 0; m < target.ndim(); ++m) {
    // Averages begin with the value everywhere: an addend of n times the value might leave the range of the dtype.
    if (target.size(m) == 1 || !to_->partial(m) || to_->partial(m) == ReduceOp::kAvg || (same_mesh && stays(m)))
      continue;
    if (!mixed) {
      begun.push_back(m);
      fill_ = to_->partial(m);
    } else if (target.coordinate(m) != 0) {
      seed_ = to_->partial(m);
    }
  }

  std::vector<Box> kept, wanted;
  for (int64_t rank = 0; rank < mesh.size(); ++rank) {
    kept.push_back(block_box(*from_, rank));
    wanted.push_back(block_box(*to_, there[rank]));
  }
  if (!summed.empty()) {
    const bool at_once = others(mesh, summed).empty() && std::all_of(summed.begin(), summed.end(), [&](int64_t m) {
                           return from_->partial(m) == from_->partial(summed[0]);
                         });
    // Copies could share the work of a sum among them; that pays from three addends on.
    const bool alone = summed.size() == 1 && (apart.empty() || mesh.size(summed[0]) == 2);
    const bool tiny = from_->global_numel() < mesh.size();
    if (tiny || (kept == wanted && begun.empty() && (at_once || alone))) {
      plan_all_reduces(summed, at_once);
      apart.insert(apart.end(), summed.begin(), summed.end());
    } else {
      std::vector<int64_t> shared = summed;
      shared.insert(shared.end(), apart.begin(), apart.end());
      for (const auto& [key, ranks] : grouped(mesh, others(mesh, shared)))
        share_out(Box(kept[ranks[0]]), ranks, wanted, kept);
      plan_reduce_scatters(summed, at_once, kept);
      apart.clear();
    }
  }
  if (kept == wanted && begun.empty()) return;

  // Copies serve their own ranks.
  std::vector<int64_t> first(mesh.size());
  for (const auto& [key, ranks] : grouped(mesh, others(mesh, apart))) {
    for (const int64_t rank : ranks) first[rank] = ranks[0];
  }
  // Where a Partial begins, an element stands on the coordinates where most of the ranks that want it hold it already;
  // those of its first owner, if they are among the best.
  const auto begun_at = [&](int64_t rank) {
    std::vector<int64_t> coordinates;
    for (const int64_t m : begun) coordinates.push_back(target.coordinate(there[rank], m));
    return coordinates;
  };
  std::map<std::pair<int64_t, Box>, std::vector<int64_t>> kept_at;  // by first owner and wanted box
  const auto keeper = [&](int64_t owner, int64_t user) -> const std::vector<int64_t>& {
    const auto [place, fresh] = kept_at.try_emplace({first[owner], wanted[user]});
    if (!fresh) return place->second;
    std::map<std::vector<int64_t>, int64_t> holders;
    for (int64_t rank = 0; rank < mesh.size(); ++rank) {
      if (first[rank] == first[owner] && wanted[rank] == wanted[user]) ++holders[begun_at(rank)];
    }
    place->second = begun_at(first[owner]);
    int64_t most = holders[place->second];
    for (const auto& [coordinates, count] : holders) {
      if (count > most) {
        most = count;
        place->second = coordinates;
      }
    }
    return place->second;
  };
  std::vector<int64_t> same = fixed;
  same.insert(same.end(), apart.begin(), apart.end());
  const auto serves = [&](int64_t owner, int64_t user) {
    return std::all_of(same.begin(), same.end(),
                       [&](int64_t m) { return mesh.coordinate(owner, m) == mesh.coordinate(user, m); }) &&
           (begun.empty() || keeper(owner, user) == begun_at(user));
  };
  map_ = std::make_shared<const IntervalMap>(
      Ownership{from_->mesh(), from_->global_shape(), [&](int64_t rank) { return kept[rank]; }, serves},
      [&](int64_t rank) { return requests_for(wanted[rank]); });
}

void Redistribution::plan_all_reduces(const std::vector<int64_t>& summed, bool at_once) {
  const DeviceMesh& mesh = *from_->mesh();
  if (at_once) {
    reduces_.push_back({mesh.group_ptr(), *from_->partial(summed[0]), {}});
    return;
  }
  for (auto m = summed.rbegin(); m != summed.rend(); ++m) {
    reduces_.push_back({mesh.group(*m).shared_from_this(), *from_->partial(*m), {}});
  }
}

void Redistribution::plan_reduce_scatters(const std::vector<int64_t>& summed, bool at_once,
                                          const std::vector<Box>& kept) {
  const DeviceMesh& mesh = *from_->mesh();
  const int64_t me = mesh.rank();
  // The block as one row of parts: by the first dim that is reduced, then the second, ...; a stage leaves this rank its
  // own run.
  std::vector<int64_t> order = summed;
  if (!at_once) std::reverse(order.begin(), order.end());
  std::vector<int64_t> mine;
  for (const int64_t m : others(mesh, summed)) mine.push_back(mesh.coordinate(m));
  std::vector<int64_t> ranks = grouped(mesh, others(mesh, summed)).at(mine);
  std::sort(ranks.begin(), ranks.end(), [&](int64_t a, int64_t b) {
    for (const int64_t m : order) {
      if (mesh.coordinate(a, m) != mesh.coordinate(b, m)) return mesh.coordinate(a, m) < mesh.coordinate(b, m);
    }
    return false;
  });
  for (const int64_t rank : ranks) {
    Part part;
    for (int64_t d = 0; d < from_->ndim(); ++d) {
      part.start.push_back(kept[rank][d].begin - from_->offsets()[d]);
      part.length.push_back(kept[rank][d].size());
    }
    parts_.push_back(std::move(part));
  }
  kept_shape_ = kept[me].shape();
  if (at_once) {
    std::vector<int64_t> counts;
    for (const int64_t rank : ranks) counts.push_back(kept[rank].numel());
    reduces_.push_back({mesh.group_ptr(), *from_->partial(summed[0]), std::move(counts)});
    return;
  }
  for (const int64_t m : order) {
    std::vector<int64_t> counts(mesh.size(m), 0);
    for (const int64_t rank : ranks) counts[mesh.coordinate(rank, m)] += kept[rank].numel();
    reduces_.push_back({mesh.group(m).shared_from_this(), *from_->partial(m), std::move(counts)});
    std::erase_if(ranks, [&](int64_t rank) { return mesh.coordinate(rank, m) != mesh.coordinate(me, m); });
  }
}

at::Tensor Redistribution::reduced(const at::Tensor& local) const {
  if (parts_.empty()) {
    if (reduces_.size() == 1) return all_reduced(local.contiguous(), reduces_[0]);
    at::Tensor value = copied_block(local);
    for (const Reduce& reduce : reduces_) reduce.group->all_reduce(value, reduce.op);
    return value;
  }
  // Ranks may hold their addends in different strides, so these do not decide which call is made.
  if (const std::optional<int64_t> dim = split_dim(local)) {
    // Every rank reads its part where it lies.
    at::Tensor result = empty_block(kept_shape_, local.options());
    at::Tensor rows = result.movedim(*dim, 0);
    reduces_[0].group->reduce_scatter(local.movedim(*dim, 0), reduces_[0].counts, rows, reduces_[0].op);
    return result;
  }
  std::vector<at::Tensor> parts;
  bool in_a_row = local.is_contiguous();  // the parts lie one behind the other already
  int64_t next = local.storage_offset(), total = 0;
  for (const Part& part : parts_) {
    at::Tensor one = local;
    for (int64_t d = 0; d < local.dim(); ++d) one = one.narrow(d, part.start[d], part.length[d]);
    if (one.numel() == 0) continue;
    in_a_row = in_a_row && one.is_contiguous() && one.storage_offset() == next;
    next += one.numel();
    total += one.numel();
    parts.push_back(std::move(one));
  }
  at::Tensor flat;
  if (in_a_row && total == local.numel()) {
    flat = local.view({-1});
  } else {
    flat = empty_block({total}, local.options());
    int64_t at = 0;
    for (const at::Tensor& part : parts) {
      flat.narrow(0, at, part.numel()).view(part.sizes()).copy_(part);
      at += part.numel();
    }
  }
  for (const Reduce& reduce : reduces_) {
    at::Tensor out = empty_block({reduce.counts[reduce.group->rank()]}, local.options());
    reduce.group->reduce_scatter(flat, reduce.counts, out, reduce.op);
    flat = std::move(out);
  }
  return flat.view(kept_shape_);
}

// The dim along which one reduce-scatter cuts the block into runs of rows, where the communicator takes them as they
// lie.
std::optional<int64_t> Redistribution::split_dim(const at::Tensor& local) const {
  if (reduces_.size() != 1 || !reduces_[0].group->takes_strided() || reduces_[0].group->size() == 1)
    return std::nullopt;
  for (int64_t dim = 0; dim < local.dim(); ++dim) {
    int64_t next = 0;
    const bool rows = std::all_of(parts_.begin(), parts_.end(), [&](const Part& part) {
      if (c10::multiply_integers(part.length) == 0) return true;
      for (int64_t d = 0; d < local.dim(); ++d) {
        if (d != dim && part.length[d] != local.size(d)) return false;
      }
      return part.start[dim] == std::exchange(next, next + part.length[dim]);
    });
    if (rows && next == local.size(dim)) return dim;
  }
  return std::nullopt;
}

// `local` is not written. Among ranks in one memory each sums its share straight into the result, and the shares are
// gathered in place; elsewhere that would be slower than an all-reduce.
at::Tensor Redistribution::all_reduced(const at::Tensor& local, const Reduce& reduce) {
  constexpr size_t kLargeBytes = size_t{1} << 20;
  Communicator& group = *reduce.group;
  if (!group.takes_strided() || group.size() == 1 || local.nbytes() < kLargeBytes) {
    at::Tensor value = copied_block(local);
    group.all_reduce(value, reduce.op);
    return value;
  }
  at::Tensor value = empty_block(local.sizes(), local.options());
  at::Tensor flat = value.view({-1});
  const std::vector<int64_t> counts = balanced_sizes(flat.numel(), group.size());
  const int64_t begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), int64_t{0});
  at::Tensor share = flat.narrow(0, begin, counts[group.rank()]);
  group.reduce_scatter(local.view({-1}), counts, share, reduce.op);
  group.all_gather(share, counts, flat);
  return value;
}

Redistribution::Pending Redistribution::start(const at::Tensor& local) const {
  Pending pending;
  pending.block_ = reduces_.empty() ? local : reduced(local);
  pending.seed_ = seed_;
  if (map_) {
    pending.map_ = map_;
    pending.under_way_ = std::make_unique<PendingGather>(*map_, pending.block_,
                                                         fill_ ? neutral(*fill_, local.scalar_type()) : at::Scalar(0));
  }
  return pending;
}

at::Tensor Redistribution::Pending::finish() {
  if (under_way_) block_ = under_way_->finish();
  under_way_.reset();
  if (seed_) block_ = at::full_like(block_, neutral(*seed_, block_.scalar_type()));
  seed_.reset();
  return block_;
}

at::Tensor Redistribution::apply(const at::Tensor& local) const { return start(local).finish(); }

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to) {
  return from == to ? local : Redistribution(from, to).apply(local);
}

double redistribution_cost(const ShardSpec& from, const ShardSpec& to) {
  if (&from == &to) return 0;
  const DeviceMesh& mesh = *from.mesh();
  double local = static_cast<double>(from.global_numel());
  for (int64_t d = 0; d < from.ndim(); ++d) {
    for (const int64_t m : from.cut(d).mesh_dims) local /= static_cast<double>(mesh.size(m));
  }
  double cost = 0;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!from.partial(m) || from.partial(m) == to.partial(m)) continue;
    const double ranks = static_cast<double>(mesh.size(m));
    const bool scatters = std::any_of(to.layout().cuts.begin(), to.layout().cuts.end(), [&](const Cut& cut) {
      return std::find(cut.mesh_dims.begin(), cut.mesh_dims.end(), m) != cut.mesh_dims.end();
    });
    cost += (scatters ? 1 : 2) * (ranks - 1) / ranks * local;
    if (scatters) local /= ranks;
  }
  double stays = 1, wanted = static_cast<double>(to.global_numel());
  for (int64_t d = 0; d < from.ndim(); ++d) {
    const Cut &a = from.cut(d), &b = to.cut(d);
    for (const int64_t m : b.mesh_dims) wanted /= static_cast<double>(mesh.size(m));
    if (!a || a == b) continue;
    if (a.mesh_dims == b.mesh_dims) {
      int64_t same = 0, begin_a = 0, begin_b = 0;
      for (size_t i = 0; i < a.sizes.size(); ++i) {
        same += Interval{begin_a, begin_a + a.sizes[i]}.intersect({begin_b, begin_b + b.sizes[i]}).size();
        begin_a += a.sizes[i];
        begin_b += b.sizes[i];
      }
      stays *=
          from.global_shape()[d] == 0 ? 1 : static_cast<double>(same) / static_cast<double>(from.global_shape()[d]);
    } else {
      stays /= static_cast<double>(a.sizes.size());
    }
  }
  return cost + wanted * (1 - stays);
}

}  // namespace moonhalo
