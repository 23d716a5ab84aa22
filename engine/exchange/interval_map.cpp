// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/interval_map.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <utility>

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
  const int64_t row = boundary_index(i, extent, request.boundary), required = request.rows.end - i;
  const int64_t step = boundary_index(i + 1, extent, request.boundary) - row;
  const int64_t target = i - request.rows.begin;
  if (step == -1) {
    const int64_t length = std::min(required, row);  // row 0 belongs to the next run
    return {target, {row + 1 - length, row + 1}, length > 1};
  }
  return {target, {row, row + (step == 1 ? std::min(required, extent - row) : 1)}, false};
}

// The runs of one request. What has none is outside the domain (Boundary::kZero).
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

// The rows that runs and one owned block share, in positions local to both.
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

bool runs_overlap(const std::vector<ReadRun>& runs, const Interval& owned) {
  return std::any_of(runs.begin(), runs.end(), [&](const ReadRun& run) { return !run.rows.intersect(owned).empty(); });
}

// A mesh dim that cuts one dim of what is read and another of what reads it would tie these dims together.
bool forms_grid(const ShardSpec& spec, const ShardSpec& readers) {
  TORCH_INTERNAL_ASSERT(readers.mesh() == spec.mesh() && readers.ndim() == spec.ndim(), "readers of another grid");
  std::vector<int64_t> dim_of(spec.mesh()->ndim(), -1);
  for (const ShardSpec* one : {&spec, &readers}) {
    for (int64_t d = 0; d < spec.ndim(); ++d) {
      for (const int64_t m : one->cut(d).mesh_dims) {
        if (dim_of[m] >= 0 && dim_of[m] != d) return false;
        dim_of[m] = d;
      }
    }
  }
  return true;
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
  std::vector<int64_t> uncut;
  for (int64_t m = 0; m < spec->mesh()->ndim(); ++m) {
    if (!cutting[m]) uncut.push_back(m);
  }
  const auto serves = [mesh = spec->mesh(), uncut](int64_t owner, int64_t user) {
    return std::all_of(uncut.begin(), uncut.end(),
                       [&](int64_t m) { return mesh->coordinate(owner, m) == mesh->coordinate(user, m); });
  };
  return {spec->mesh(), spec->global_shape(), [spec](int64_t rank) { return block_box(*spec, rank); }, serves, uncut};
}

// The planner has the rows that are owned and requested along each dim, and finds the transfers.
struct IntervalMap::Planner {
  // One dim: an entry for each rank, or in a grid for each combination of coordinates along the mesh dims that cut the
  // dim of what is read or of what reads it.
  struct Axis {
    size_t index(const DeviceMesh& mesh, int64_t rank) const;

    bool by_rank = true;
    std::vector<int64_t> mesh_dims;
    std::vector<int64_t> ranks;  // with these coordinates, and 0 along all other mesh dims
    std::vector<int64_t> uncut;  // the coordinates along mesh dims that do not cut what is read, as one number
    std::vector<Interval> owned;
    std::vector<HaloRequest> requests;
    std::vector<std::vector<ReadRun>> runs;
  };

  static Planner of_ranks(const Ownership& ownership, const std::function<std::vector<HaloRequest>(int64_t)>& requests);
  static Planner of_grid(const SpecPtr& spec, const GridRequests& requests);
  static Axis axis_of(const ShardSpec& spec, const GridRequests& requests, int64_t dim);

  int64_t ranks() const { return from.mesh->size(); }
  size_t index(int64_t d, int64_t rank) const { return (*axes)[d].index(*from.mesh, rank); }
  const Interval& owned(int64_t d, int64_t rank) const { return (*axes)[d].owned[index(d, rank)]; }
  const HaloRequest& request(int64_t d, int64_t rank) const { return (*axes)[d].requests[index(d, rank)]; }
  const std::vector<ReadRun>& runs(int64_t d, int64_t rank) const { return (*axes)[d].runs[index(d, rank)]; }
  template <typename Holds>
  bool in_all_dims(const Holds& holds, int64_t owner, int64_t user) const;
  /// True if any rank sends anything.
  bool exchanges() const;
  bool grid_exchanges() const;
  bool is_same(int64_t mesh_dim) const;  // one of Ownership::same_coordinates
  /// Without a grid, the first rank that `rank` may serve, or be served by. The others follow at `steps` from it.
  int64_t first_beside(int64_t rank) const;
  /// The ranks that may send to `me`, or receive from it, in their order.
  std::vector<int64_t> owners_for(int64_t me) const;
  std::vector<int64_t> users_of(int64_t me) const;
  template <typename Holds>
  std::vector<int64_t> ranks_with(int64_t me, const Holds& holds) const;
  /// All copies from `owner` to `user`, the last dim varying fastest: the same order on both of them.
  std::vector<Copy> transfers_between(int64_t owner, int64_t user) const;

  Ownership from;
  int64_t ndim;
  bool grid = false;
  std::vector<int64_t> steps = {};  // without a grid: to the ranks beside a rank from first_beside()
  std::optional<std::vector<int64_t>> shape_of_nothing = std::nullopt;
  std::shared_ptr<std::vector<Axis>> axes = std::make_shared<std::vector<Axis>>();  // per dim
};

size_t IntervalMap::Planner::Axis::index(const DeviceMesh& mesh, int64_t rank) const {
  if (by_rank) return rank;
  int64_t index = 0;
  for (const int64_t m : mesh_dims) index = index * mesh.size(m) + mesh.coordinate(rank, m);
  return index;
}

IntervalMap::Planner IntervalMap::Planner::of_ranks(const Ownership& ownership,
                                                    const std::function<std::vector<HaloRequest>(int64_t)>& requests) {
  Planner planner{ownership, static_cast<int64_t>(ownership.global_shape.size())};
  planner.steps = {0};
  int64_t stride = planner.ranks();
  for (int64_t m = 0; m < ownership.mesh->ndim(); ++m) {
    stride /= ownership.mesh->size(m);
    if (planner.is_same(m)) continue;
    std::vector<int64_t> longer;
    for (const int64_t step : planner.steps) {
      for (int64_t i = 0; i < ownership.mesh->size(m); ++i) longer.push_back(step + i * stride);
    }
    planner.steps = std::move(longer);
  }
  planner.axes->resize(planner.ndim);
  for (int64_t rank = 0; rank < planner.ranks(); ++rank) {
    const Box owned = ownership.owned(rank);
    const std::vector<HaloRequest> required = requests(rank);
    TORCH_INTERNAL_ASSERT(static_cast<int64_t>(required.size()) == planner.ndim, "one need per dim");
    for (int64_t d = 0; d < planner.ndim; ++d) {
      Axis& axis = (*planner.axes)[d];
      axis.owned.push_back(owned[d]);
      axis.requests.push_back(required[d]);
      axis.runs.push_back(runs_of(required[d], ownership.global_shape[d]));
    }
  }
  return planner;
}

IntervalMap::Planner::Axis IntervalMap::Planner::axis_of(const ShardSpec& spec, const GridRequests& requests,
                                                         int64_t dim) {
  const DeviceMesh& mesh = *spec.mesh();
  const ShardSpec& readers = *requests.readers;
  const auto cuts = [&](const ShardSpec& one, int64_t m) {
    const std::vector<int64_t>& mesh_dims = one.cut(dim).mesh_dims;
    return std::find(mesh_dims.begin(), mesh_dims.end(), m) != mesh_dims.end();
  };
  Axis axis;
  axis.by_rank = false;
  axis.ranks = axis.uncut = {0};
  int64_t stride = mesh.size();
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    stride /= mesh.size(m);
    if (!cuts(spec, m) && !cuts(readers, m)) continue;
    axis.mesh_dims.push_back(m);
    const std::vector<int64_t> ranks = std::move(axis.ranks), uncut = std::move(axis.uncut);
    axis.ranks.clear();
    axis.uncut.clear();
    for (size_t i = 0; i < ranks.size(); ++i) {
      for (int64_t coordinate = 0; coordinate < mesh.size(m); ++coordinate) {
        axis.ranks.push_back(ranks[i] + coordinate * stride);
        axis.uncut.push_back(cuts(spec, m) ? uncut[i] : uncut[i] * mesh.size(m) + coordinate);
      }
    }
  }
  for (const int64_t rank : axis.ranks) {
    axis.owned.push_back(spec.block_range(dim, rank));
    axis.requests.push_back(requests.along(dim, axis.owned.back(), readers.block_range(dim, rank)));
    axis.runs.push_back(runs_of(axis.requests.back(), spec.global_shape()[dim]));
  }
  return axis;
}

IntervalMap::Planner IntervalMap::Planner::of_grid(const SpecPtr& spec, const GridRequests& requests) {
  Planner planner{Ownership::of(spec), spec->ndim()};
  planner.grid = forms_grid(*spec, *requests.readers);
  if (!planner.grid) {
    planner = of_ranks(planner.from, [&](int64_t rank) {
      std::vector<HaloRequest> required;
      for (int64_t d = 0; d < spec->ndim(); ++d)
        required.push_back(requests.along(d, spec->block_range(d, rank), requests.readers->block_range(d, rank)));
      return required;
    });
  }
  for (int64_t d = 0; d < spec->ndim() && planner.grid; ++d) planner.axes->push_back(axis_of(*spec, requests, d));
  planner.shape_of_nothing = requests.shape_of_nothing;
  return planner;
}

template <typename Holds>
bool IntervalMap::Planner::in_all_dims(const Holds& holds, int64_t owner, int64_t user) const {
  for (int64_t d = 0; d < ndim; ++d) {
    if (!holds(runs(d, user), owned(d, owner))) return false;
  }
  return true;
}

bool IntervalMap::Planner::exchanges() const {
  if (grid) return grid_exchanges();
  const auto reads = [](const std::vector<ReadRun>& runs, const Interval&) { return !runs.empty(); };
  for (int64_t user = 0; user < ranks(); ++user) {
    if (!in_all_dims(reads, user, user) || (from.serves(user, user) && in_all_dims(inside, user, user))) continue;
    const int64_t first = first_beside(user);
    for (const int64_t step : steps) {
      const int64_t owner = first + step;
      if (owner != user && in_all_dims(runs_overlap, owner, user) && from.serves(owner, user)) return true;
    }
  }
  return false;
}

bool IntervalMap::Planner::is_same(int64_t mesh_dim) const {
  const std::vector<int64_t>& same = from.same_coordinates;
  return std::find(same.begin(), same.end(), mesh_dim) != same.end();
}

int64_t IntervalMap::Planner::first_beside(int64_t rank) const {
  int64_t first = 0;
  for (int64_t m = 0; m < from.mesh->ndim(); ++m)
    first = first * from.mesh->size(m) + (is_same(m) ? from.mesh->coordinate(rank, m) : 0);
  return first;
}

// A rank receives something if it reads rows along all dims, and along one of them a row that it does not own: every
// row of the domain has an owner. Whether there is such an entry along one dim does not depend on the other dims.
bool IntervalMap::Planner::grid_exchanges() const {
  bool foreign = false;
  for (const Axis& axis : *axes) {
    bool reads = false;
    for (size_t i = 0; i < axis.runs.size(); ++i) {
      reads = reads || !axis.runs[i].empty();
      foreign = foreign || !inside(axis.runs[i], axis.owned[i]);
    }
    if (!reads) return false;
  }
  return foreign;
}

// In a grid, the ranks for which holds(axis, entry of me, entry of the rank) holds along all dims; else all beside me.
template <typename Holds>
std::vector<int64_t> IntervalMap::Planner::ranks_with(int64_t me, const Holds& holds) const {
  std::vector<int64_t> found{me};
  if (!grid) {
    found = steps;
    for (int64_t& rank : found) rank += first_beside(me);
    return found;
  }
  for (int64_t d = 0; d < ndim; ++d) {
    const Axis& axis = (*axes)[d];
    const size_t mine = axis.index(*from.mesh, me);
    const std::vector<int64_t> before = std::move(found);
    found.clear();
    for (size_t other = 0; other < axis.ranks.size(); ++other) {
      if (axis.uncut[mine] != axis.uncut[other] || !holds(axis, mine, other)) continue;
      for (const int64_t rank : before) found.push_back(rank - axis.ranks[mine] + axis.ranks[other]);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<int64_t> IntervalMap::Planner::owners_for(int64_t me) const {
  return ranks_with(
      me, [](const Axis& axis, size_t mine, size_t other) { return runs_overlap(axis.runs[mine], axis.owned[other]); });
}

std::vector<int64_t> IntervalMap::Planner::users_of(int64_t me) const {
  return ranks_with(
      me, [](const Axis& axis, size_t mine, size_t other) { return runs_overlap(axis.runs[other], axis.owned[mine]); });
}

std::vector<IntervalMap::Copy> IntervalMap::Planner::transfers_between(int64_t owner, int64_t user) const {
  std::vector<Copy> copies;
  if (!in_all_dims(runs_overlap, owner, user) || !from.serves(owner, user)) return copies;
  std::vector<std::vector<Overlap>> found;
  for (int64_t d = 0; d < ndim; ++d) found.push_back(overlaps(runs(d, user), owned(d, owner)));
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

// The key is made of this when it is asked for.
struct IntervalMap::KeySource {
  KeySource(SpecPtr from_, std::shared_ptr<const std::vector<Planner::Axis>> axes_)
      : from(std::move(from_)), axes(std::move(axes_)) {}

  SpecPtr from;
  std::shared_ptr<const std::vector<Planner::Axis>> axes;
  std::once_flag made;
  std::shared_ptr<const Key> key;
};

std::shared_ptr<const IntervalMap::Key> IntervalMap::key() const {
  if (!key_) return nullptr;
  std::call_once(key_->made, [&] {
    const SpecPtr& from = key_->from;
    auto key = std::make_shared<Key>();
    key->from = from;
    for (int64_t rank = 0; rank < mesh_->size(); ++rank) {
      for (int64_t d = 0; d < from->ndim(); ++d) {
        const Planner::Axis& axis = (*key_->axes)[d];
        const size_t entry = axis.index(*mesh_, rank);
        const auto& [rows, boundary, reversed] = axis.requests[entry];
        if (!reversed && rows == axis.owned[entry]) continue;
        key->requests.insert(key->requests.end(), {rank * from->ndim() + d, rows.begin, rows.end,
                                                   2 * static_cast<int64_t>(boundary) + reversed});
      }
    }
    key_->key = std::move(key);
  });
  return key_->key;
}

IntervalMap::IntervalMap(const Ownership& from, const std::function<std::vector<HaloRequest>(int64_t)>& requests)
    : mesh_(from.mesh) {
  take(Planner::of_ranks(from, requests));
}

IntervalMap::IntervalMap(const SpecPtr& from, const std::function<std::vector<HaloRequest>(int64_t)>& requests)
    : mesh_(from->mesh()) {
  const Planner planner = Planner::of_ranks(Ownership::of(from), requests);
  take(planner);
  if (exchanges_) key_ = std::make_shared<KeySource>(from, planner.axes);
}

IntervalMap::IntervalMap(const SpecPtr& from, const GridRequests& requests) : mesh_(from->mesh()) {
  const Planner planner = Planner::of_grid(from, requests);
  take(planner);
  if (exchanges_) key_ = std::make_shared<KeySource>(from, planner.axes);
}

std::vector<IntervalMap::Received> IntervalMap::received() const {
  std::vector<Received> regions;
  for (const Transfer& transfer : receives_) {
    for (const Copy& copy : transfer.copies) regions.push_back({transfer.peer, copy.source, copy.length});
  }
  return regions;
}

void IntervalMap::take(const Planner& planner) {
  const int64_t me = mesh_->rank();
  bool needs_nothing = false;
  for (int64_t d = 0; d < planner.ndim; ++d) {
    owned_shape_.push_back(planner.owned(d, me).size());
    needed_shape_.push_back(planner.request(d, me).rows.size());
    needs_nothing = needs_nothing || needed_shape_.back() == 0;
  }
  if (needs_nothing && planner.shape_of_nothing) needed_shape_ = *planner.shape_of_nothing;
  const auto transfer = [&](int64_t peer, int64_t owner, int64_t user) {
    Transfer result{static_cast<int>(peer), planner.transfers_between(owner, user)};
    for (const Copy& copy : result.copies) result.numel += copy.numel;
    return result;
  };
  Transfer local = transfer(me, me, me);
  // A rank that moves nothing still takes part in the exchange, if there is one: every rank makes the same calls.
  exchanges_ = planner.exchanges();
  const std::vector<int64_t> nobody, owners = exchanges_ ? planner.owners_for(me) : nobody,
                                     users = exchanges_ ? planner.users_of(me) : nobody;
  for (const int64_t owner : owners) {
    Transfer receive = transfer(owner, owner, me);
    if (owner != me && receive.numel > 0) receives_.push_back(std::move(receive));
  }
  for (const int64_t user : users) {
    Transfer send = transfer(user, me, user);
    if (user == me || send.numel == 0) continue;
    elements_sent_ += send.numel;
    sends_.push_back(std::move(send));
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
