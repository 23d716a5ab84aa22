// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/interval_map.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/exchange/boundary_index.h"

namespace moonhalo {
namespace {

// Requested positions from `target` on that read `rows` of the domain, maybe backwards.
struct ReadRun {
  int64_t target;
  Interval rows;
  bool reversed;
};

// The run at row `i` beyond an end of the domain: as far as the rows go on from there, upwards, downwards (mirrored) or
// not at all.
ReadRun run_beyond(int64_t i, const HaloRequest& request, int64_t extent) {
  const int64_t row = boundary_index(i, extent, request.boundary), wanted = request.rows.end - i;
  const int64_t step = boundary_index(i + 1, extent, request.boundary) - row;
  const int64_t target = i - request.rows.begin;
  if (step == -1) {
    const int64_t length = std::min(wanted, row);  // row 0 belongs to the next run
    return {target, {row + 1 - length, row + 1}, length > 1};
  }
  return {target, {row, row + (step == 1 ? std::min(wanted, extent - row) : 1)}, false};
}

// The runs of one request. What has none lies outside the domain (Boundary::kZero).
std::vector<ReadRun> runs_of(const HaloRequest& request, int64_t extent) {
  std::vector<ReadRun> runs;
  const auto [begin, end] = request.rows;
  TORCH_INTERNAL_ASSERT(begin <= end, "a need ends before it begins");
  if (extent == 0) return runs;
  for (int64_t i = begin; i < end;) {
    if (i >= 0 && i < extent) {
      runs.push_back({i - begin, {i, std::min(end, extent)}, false});
    } else if (request.boundary != Boundary::kZero) {
      runs.push_back(run_beyond(i, request, extent));
    } else if (i < 0) {
      i = std::min<int64_t>(end, 0);
      continue;
    } else {
      break;
    }
    i += runs.back().rows.size();
  }
  if (!request.reversed) return runs;
  for (ReadRun& run : runs) {
    run.target = request.rows.size() - run.target - run.rows.size();
    run.reversed = run.rows.size() > 1 && !run.reversed;
  }
  return runs;
}

// The rows where runs meet one owned block, in positions local to both.
struct Overlap {
  int64_t source, target, length;
  bool reversed;
};

std::vector<Overlap> overlaps(const std::vector<ReadRun>& runs, const Interval& owned) {
  std::vector<Overlap> result;
  for (const ReadRun& run : runs) {
    const Interval both = run.rows.intersect(owned);
    if (both.empty()) continue;
    const int64_t skipped = run.reversed ? run.rows.end - both.end : both.begin - run.rows.begin;
    result.push_back({both.begin - owned.begin, run.target + skipped, both.size(), run.reversed});
  }
  return result;
}

bool inside(const std::vector<ReadRun>& runs, const Interval& owned) {
  return std::all_of(runs.begin(), runs.end(), [&](const ReadRun& run) { return owned.contains(run.rows); });
}

bool meet(const std::vector<ReadRun>& runs, const Interval& owned) {
  return std::any_of(runs.begin(), runs.end(), [&](const ReadRun& run) { return !run.rows.intersect(owned).empty(); });
}

}  // namespace

Box block_box(const ShardSpec& spec, int64_t rank) {
  Box box;
  for (int64_t d = 0; d < spec.ndim(); ++d) box.push_back(spec.block_range(d, rank));
  return box;
}

std::vector<HaloRequest> requests_for(const Box& box) {
  std::vector<HaloRequest> requests;
  for (const Interval& rows : box) requests.push_back({rows});
  return requests;
}

Ownership Ownership::of(const SpecPtr& spec) {
  std::vector<bool> cutting(spec->mesh()->ndim(), false);
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    for (const int64_t m : spec->cut(d).mesh_dims) cutting[m] = true;
  }
  const auto serves = [mesh = spec->mesh(), cutting = std::move(cutting)](int64_t owner, int64_t user) {
    for (int64_t m = 0; m < mesh->ndim(); ++m) {
      if (!cutting[m] && mesh->coordinate(owner, m) != mesh->coordinate(user, m)) return false;
    }
    return true;
  };
  return {spec->mesh(), spec->global_shape(), [spec](int64_t rank) { return block_box(*spec, rank); }, serves};
}

// Collects what every rank owns and requests, and the transfers that follow from it.
struct IntervalMap::Planner {
  using Runs = std::vector<std::vector<ReadRun>>;  // per dim

  Planner(const Ownership& ownership, const std::function<std::vector<HaloRequest>(int64_t)>& requests);
  template <typename Holds>
  bool in_all_dims(const Holds& holds, int64_t owner, int64_t user) const;
  /// True if any rank sends anything.
  bool exchanges() const;
  /// All copies from `owner` to `user`, the last dim varying fastest: the same order on both of them.
  std::vector<Copy> transfers_between(int64_t owner, int64_t user) const;

  const Ownership& from;
  int64_t ranks, ndim;
  std::vector<Box> owned;  // per rank
  std::vector<Runs> runs;  // per rank
};

IntervalMap::Planner::Planner(const Ownership& ownership,
                              const std::function<std::vector<HaloRequest>(int64_t)>& requests)
    : from(ownership), ranks(from.mesh->size()), ndim(static_cast<int64_t>(from.global_shape.size())) {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    owned.push_back(from.owned(rank));
    const std::vector<HaloRequest> wanted = requests(rank);
    TORCH_INTERNAL_ASSERT(static_cast<int64_t>(wanted.size()) == ndim, "one need per dim");
    runs.emplace_back();
    for (int64_t d = 0; d < ndim; ++d) runs.back().push_back(runs_of(wanted[d], from.global_shape[d]));
  }
}

template <typename Holds>
bool IntervalMap::Planner::in_all_dims(const Holds& holds, int64_t owner, int64_t user) const {
  for (int64_t d = 0; d < ndim; ++d) {
    if (!holds(runs[user][d], owned[owner][d])) return false;
  }
  return true;
}

bool IntervalMap::Planner::exchanges() const {
  for (int64_t user = 0; user < ranks; ++user) {
    if (from.serves(user, user) && in_all_dims(inside, user, user)) continue;
    for (int64_t owner = 0; owner < ranks; ++owner) {
      if (owner != user && from.serves(owner, user) && in_all_dims(meet, owner, user)) return true;
    }
  }
  return false;
}

std::vector<IntervalMap::Copy> IntervalMap::Planner::transfers_between(int64_t owner, int64_t user) const {
  std::vector<Copy> copies;
  if (!from.serves(owner, user)) return copies;
  std::vector<std::vector<Overlap>> found(ndim);
  for (int64_t d = 0; d < ndim; ++d) {
    found[d] = overlaps(runs[user][d], owned[owner][d]);
    if (found[d].empty()) return copies;
  }
  std::vector<size_t> at(ndim, 0);
  for (bool more = true; more;) {
    Copy copy;
    copy.numel = 1;
    for (int64_t d = 0; d < ndim; ++d) {
      const Overlap& overlap = found[d][at[d]];
      copy.source.push_back(overlap.source);
      copy.target.push_back(overlap.target);
      copy.length.push_back(overlap.length);
      if (overlap.reversed) copy.flips.push_back(d);
      copy.numel *= overlap.length;
    }
    copies.push_back(std::move(copy));
    more = false;
    for (int64_t d = ndim - 1; d >= 0 && !more; --d) {
      more = ++at[d] < found[d].size();
      if (!more) at[d] = 0;
    }
  }
  return copies;
}

IntervalMap::IntervalMap(const SpecPtr& from, const std::function<std::vector<HaloRequest>(int64_t)>& requests)
    : IntervalMap(Ownership::of(from), requests) {
  if (!exchanges_) return;
  auto key = std::make_shared<Key>();
  key->from = from;
  for (int64_t rank = 0; rank < mesh_->size(); ++rank) {
    const std::vector<HaloRequest> wanted = requests(rank);
    for (int64_t d = 0; d < from->ndim(); ++d) {
      const auto& [rows, boundary, reversed] = wanted[d];
      if (!reversed && rows == from->block_range(d, rank)) continue;
      key->requests.insert(key->requests.end(), {rank * from->ndim() + d, rows.begin, rows.end,
                                                 2 * static_cast<int64_t>(boundary) + reversed});
    }
  }
  key_ = std::move(key);
}

std::vector<IntervalMap::Received> IntervalMap::received() const {
  std::vector<Received> regions;
  for (const Transfer& transfer : receives_) {
    for (const Copy& copy : transfer.copies) regions.push_back({transfer.peer, copy.source, copy.length});
  }
  return regions;
}

IntervalMap::IntervalMap(const Ownership& from, const std::function<std::vector<HaloRequest>(int64_t)>& requests)
    : mesh_(from.mesh) {
  const Planner planner(from, requests);
  const int64_t me = mesh_->rank();
  owned_shape_ = planner.owned[me].shape();
  for (const HaloRequest& request : requests(me)) needed_shape_.push_back(request.rows.size());
  const auto transfer = [&](int64_t peer, int64_t owner, int64_t user) {
    Transfer result{static_cast<int>(peer), planner.transfers_between(owner, user)};
    for (const Copy& copy : result.copies) result.numel += copy.numel;
    return result;
  };
  Transfer local = transfer(me, me, me);
  // A rank that moves nothing still takes part in the exchange, if there is one: every rank makes the same calls.
  exchanges_ = planner.exchanges();
  for (int64_t peer = 0; peer < planner.ranks && exchanges_; ++peer) {
    if (peer == me) continue;
    Transfer receive = transfer(peer, peer, me), send = transfer(peer, me, peer);
    elements_sent_ += send.numel;
    if (receive.numel > 0) receives_.push_back(std::move(receive));
    if (send.numel > 0) sends_.push_back(std::move(send));
  }
  const int64_t needed = c10::multiply_integers(needed_shape_);
  covered_ = local.numel + elements_received() == needed;
  local_ = std::move(local.copies);
  identity_ = receives_.empty() && needed_shape_ == owned_shape_ && covered_ &&
              (needed == 0 || (local_.size() == 1 && local_[0].flips.empty()));
}

at::Tensor IntervalMap::region(const at::Tensor& tensor, at::IntArrayRef start, at::IntArrayRef length) {
  at::Tensor result = tensor;
  for (size_t d = 0; d < start.size(); ++d) {
    if (length[d] != result.size(d)) result = result.narrow(d, start[d], length[d]);
  }
  return result;
}

at::Tensor IntervalMap::source_part(const at::Tensor& owned, const Copy& copy) {
  const at::Tensor part = region(owned, copy.source, copy.length);
  return copy.flips.empty() ? part : part.flip(copy.flips);
}

at::Tensor IntervalMap::target_part(const at::Tensor& needed, const Copy& copy) {
  return region(needed, copy.target, copy.length);
}

int64_t IntervalMap::elements_received() const {
  int64_t received = 0;
  for (const Transfer& transfer : receives_) received += transfer.numel;
  return received;
}

}  // namespace moonhalo
