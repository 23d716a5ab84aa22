// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/redistribution.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/redistribution_plan.h"

namespace moonhalo {

Redistribution::Redistribution(SpecPtr from, SpecPtr to) : from_(std::move(from)), to_(std::move(to)) {
  const RedistributionPlan plan = plan_redistribution(from_, to_);
  reduces_ = reduces_of(plan);
  if (plan.reduction == RedistributionPlan::Reduction::kReduceScatter) {
    parts_ = parts_of(plan);
    kept_shape_ = plan.box_after_reduce[from_->mesh()->rank()].shape();
  }
  map_ = map_of(plan);
  if (!plan.partial_started.empty()) fill_ = to_->partial(plan.partial_started.back());
  for (const int64_t m : plan.partial_seeded) {
    if (to_->mesh()->coordinate(m) != 0) seed_ = to_->partial(m);
  }
}

std::vector<Redistribution::Reduce> Redistribution::reduces_of(const RedistributionPlan& plan) {
  if (plan.reduction == RedistributionPlan::Reduction::kNone) return {};
  const DeviceMesh& mesh = *plan.from->mesh();
  const bool scatters = plan.reduction == RedistributionPlan::Reduction::kReduceScatter;
  std::vector<int64_t> counts, ranks;
  if (scatters) ranks = plan.addend_holders();
  if (plan.at_once) {
    for (const int64_t rank : ranks) counts.push_back(plan.box_after_reduce[rank].numel());
    return {{mesh.group_ptr(), *plan.from->partial(plan.partial_reduced[0]), std::move(counts)}};
  }
  std::vector<Reduce> reduces;
  for (const int64_t m : plan.reduce_order()) {
    counts.assign(scatters ? mesh.size(m) : 0, 0);
    for (const int64_t rank : ranks) counts[mesh.coordinate(rank, m)] += plan.box_after_reduce[rank].numel();
    reduces.push_back({mesh.group(m).shared_from_this(), *plan.from->partial(m), counts});
    std::erase_if(ranks, [&](int64_t rank) { return mesh.coordinate(rank, m) != mesh.coordinate(m); });
  }
  return reduces;
}

// The block as one row of parts: by the first dim that is reduced, then the second, ...; a stage leaves this rank its
// own run.
std::vector<Redistribution::Part> Redistribution::parts_of(const RedistributionPlan& plan) {
  std::vector<Part> parts;
  for (const int64_t rank : plan.addend_holders()) {
    const Box& box = plan.box_after_reduce[rank];
    Part part{{}, box.shape()};
    for (int64_t d = 0; d < box.ndim(); ++d) part.start.push_back(box[d].begin - plan.from->offsets()[d]);
    parts.push_back(std::move(part));
  }
  return parts;
}

std::shared_ptr<const IntervalMap> Redistribution::map_of(const RedistributionPlan& plan) {
  if (!plan.moves) return nullptr;
  const auto owned = [&](int64_t rank) { return plan.box_after_reduce[rank]; };
  const auto serves = [&](int64_t owner, int64_t user) { return plan.serves(owner, user); };
  return std::make_shared<const IntervalMap>(
      Ownership{plan.from->mesh(), plan.from->global_shape(), owned, serves, plan.same_coordinates()},
      [&](int64_t rank) { return requests_for(plan.required_box[rank]); });
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
    // Every rank reads its part in place.
    at::Tensor result = empty_block(kept_shape_, local.options());
    at::Tensor rows = result.movedim(*dim, 0);
    reduces_[0].group->reduce_scatter(local.movedim(*dim, 0), reduces_[0].counts, rows, reduces_[0].op);
    return result;
  }
  std::vector<at::Tensor> parts;
  bool in_a_row = local.is_contiguous();  // the parts are contiguous already
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
// are stored.
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

Redistribution::Pending Redistribution::start(const at::Tensor& local, Traffic traffic) const {
  std::optional<TrafficScope> moving;  // cached calls that move nothing are short
  if (!local.is_meta() && (!reduces_.empty() || (map_ && map_->exchanges()))) moving.emplace(traffic);
  Pending pending;
  if (local.is_meta()) {  // LibTorch asks for a shape, as of a sum with zeros that have no memory
    pending.block_ = at::empty(to_->local_shape(), local.options());
    return pending;
  }
  pending.block_ = reduces_.empty() ? local : reduced(local);
  pending.seed_ = seed_;
  if (map_) {
    pending.map_ = map_;
    pending.under_way_ = std::make_unique<PendingGather>(
        *map_, pending.block_, fill_ ? neutral_value(*fill_, local.scalar_type()) : at::Scalar(0));
  }
  return pending;
}

at::Tensor Redistribution::Pending::finish() {
  if (under_way_) block_ = under_way_->finish();
  under_way_.reset();
  if (seed_) block_ = at::full_like(block_, neutral_value(*seed_, block_.scalar_type()));
  seed_.reset();
  return block_;
}

at::Tensor Redistribution::apply(const at::Tensor& local, Traffic traffic) const {
  return start(local, traffic).finish();
}

at::Tensor redistribute_local(const at::Tensor& local, const SpecPtr& from, const SpecPtr& to, Traffic traffic) {
  return from == to ? local : Redistribution(from, to).apply(local, traffic);
}

namespace {

double cost_of_move(const ShardSpec& from, const ShardSpec& to) {
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
  double stays = 1, required = static_cast<double>(to.global_numel());
  for (int64_t d = 0; d < from.ndim(); ++d) {
    const Cut &a = from.cut(d), &b = to.cut(d);
    for (const int64_t m : b.mesh_dims) required /= static_cast<double>(mesh.size(m));
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
  return cost + required * (1 - stays);
}

}  // namespace

double redistribution_cost(const ShardSpec& from, const ShardSpec& to) {
  if (!from.has_stored()) return cost_of_move(from, to);
  constexpr double kFetching = 1e-9;
  const SpecPtr fetched = fetched_for(SpecPtr::reclaim_copy(&from), to);
  return kFetching * cost_of_move(from, *fetched) + cost_of_move(*fetched, to);
}

}  // namespace moonhalo
