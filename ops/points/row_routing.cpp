// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/points/row_routing.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

void append(std::vector<int64_t>& to, const std::vector<int64_t>& items) {
  to.insert(to.end(), items.begin(), items.end());
}

std::vector<int64_t> times(std::vector<int64_t> counts, int64_t factor) {
  for (int64_t& count : counts) count *= factor;
  return counts;
}

// The lowest and the highest index; {0, -1} for no indices, and for those that are not computed.
std::pair<int64_t, int64_t> range_of(const at::Tensor& indices) {
  if (indices.numel() == 0 || is_fake(indices)) return {0, -1};
  return {indices.min().item<int64_t>(), indices.max().item<int64_t>()};
}

void check_range(std::pair<int64_t, int64_t> range, int64_t n, const char* op) {
  const auto [low, high] = range;
  TORCH_CHECK_INDEX(low >= -1 && high < n, op, ": index ", low < -1 ? low : high, " is not one of ", n,
                    " points\n  have  indices from ", low, " to ", high, "\n  fix   give indices in [0, ", n,
                    "), or -1 for none");
}

}  // namespace

PointCuts::PointCuts(const SpecPtr& given_query, const SpecPtr& given_points) {
  Layout q = without_partial(given_query)->layout(), p = without_partial(given_points)->layout();
  const int64_t batch = given_points->ndim() - 2;
  q.cuts.back() = {};
  p.cuts.back() = {};
  std::vector<int64_t> used;
  for (int64_t d = 0; d < batch; ++d) {
    Cut cut;
    for (const Cut& candidate : {q.cuts[d], p.cuts[d]}) {
      if (!cut && !intersects(candidate.mesh_dims, used)) cut = candidate;
    }
    append(used, cut.mesh_dims);
    q.cuts[d] = p.cuts[d] = std::move(cut);
  }
  Cut &m = q.cuts[batch], &n = p.cuts[batch];
  if (intersects(m.mesh_dims, used)) m = {};
  if (intersects(n.mesh_dims, used)) n = {};
  // The rest of a query given with more dims than two behind the batch is whole.
  for (size_t d = batch + 1; d < q.cuts.size(); ++d) q.cuts[d] = {};
  std::vector<int64_t> more;
  for (const int64_t mesh_dim : n.mesh_dims) {
    if (!intersects({mesh_dim}, m.mesh_dims)) more.push_back(mesh_dim);
  }
  if (!more.empty()) m = divided_further(m, more, q.global_shape[batch], *q.mesh);
  query = intern(std::move(q));
  points = intern(std::move(p));
}

SpecPtr PointCuts::like_query(const std::vector<int64_t>& rest) const {
  const int64_t kept = points->ndim() - 1;
  std::vector<int64_t> shape(query->global_shape().begin(), query->global_shape().begin() + kept),
      source = all_dims(kept);
  append(shape, rest);
  source.resize(shape.size(), -1);
  return with_cuts_of(query, shape, source);
}

SpecPtr PointCuts::sum_like_points() const {
  Layout layout = points->layout();
  const int64_t rows = points->ndim() - 2;
  for (const int64_t m : query->cut(rows).mesh_dims) {
    if (!intersects({m}, points->cut(rows).mesh_dims)) layout.partials[m] = ReduceOp::kSum;
  }
  return intern(std::move(layout));
}

std::vector<int> PointCuts::holders() const {
  const MeshPtr& mesh = points->mesh();
  const int64_t rows = points->ndim() - 2;
  const auto& mesh_dims = points->cut(rows).mesh_dims;
  std::vector<int> ranks(blocks().size(), -1);
  for (int64_t rank = 0; rank < mesh->size(); ++rank) {
    bool beside = true;
    for (int64_t m = 0; m < mesh->ndim(); ++m)
      beside &= intersects({m}, mesh_dims) || mesh->coordinate(rank, m) == mesh->coordinate(m);
    if (beside) ranks[points->block_index(rows, rank)] = static_cast<int>(rank);
  }
  return ranks;
}

std::vector<Interval> PointCuts::blocks() const {
  std::vector<Interval> result;
  int64_t begin = 0;
  for (const int64_t size : points->block_sizes(points->ndim() - 2)) {
    result.push_back({begin, begin + size});
    begin += size;
  }
  return result;
}

at::Tensor rows_at(const at::Tensor& table, const at::Tensor& numbers) {
  const int64_t features = table.size(1);
  std::vector<int64_t> shape = numbers.sizes().vec();
  shape.push_back(features);
  const at::Tensor none = at::zeros({1, features}, table.options());
  return at::cat({table, none}).index_select(0, numbers.reshape(-1)).view(shape);
}

at::Tensor add_rows_at(const at::Tensor& grad, const at::Tensor& numbers, int64_t rows) {
  const int64_t features = grad.size(-1);
  at::Tensor table = grad.new_zeros({rows, features});
  note_work("add_rows", 0, memory_bytes({grad, numbers, table}));
  if (is_fake(grad) || is_fake(numbers)) return table;
  // index_add_ makes a call of every row.
  const at::Tensor from = grad.contiguous(), to = numbers.contiguous();
  const int64_t* number = to.const_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "neighbors", [&] {
    const scalar_t* source = from.const_data_ptr<scalar_t>();
    scalar_t* sums = table.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < to.numel(); ++i, source += features) {
      if (number[i] == rows) continue;
      for (int64_t f = 0; f < features; ++f) sums[number[i] * features + f] += source[f];
    }
  });
  return table;
}

at::Tensor row_numbers(const at::Tensor& indices, int64_t n, const char* op) {
  const int64_t batch = indices.size(0);
  check_range(range_of(indices), n, op);
  std::vector<int64_t> along(indices.dim(), 1);
  along[0] = batch;
  const at::Tensor first = (at::arange(batch, indices.options()) * n).view(along);
  return at::where(indices.ge(0), indices + first, at::full({}, batch * n, indices.options()));
}

at::Tensor offsets_of(const at::Tensor& rows, const at::Tensor& query, const at::Tensor& indices) {
  // Chosen, not multiplied by zero: a query may be infinite.
  return at::where(indices.ge(0).unsqueeze(-1), rows - query.unsqueeze(2), 0.0);
}

at::Tensor query_gradient(const at::Tensor& grad, const at::Tensor& indices) {
  return at::where(indices.ge(0).unsqueeze(-1), grad, 0.0).sum(2).neg();
}

PointRoute::PointRoute(const PointCuts& cuts, const at::Tensor& indices, const char* op)
    : mesh_(cuts.points->mesh()), batch_(indices.size(0)) {
  const int64_t rows = cuts.points->ndim() - 2, n = cuts.points->global_shape()[rows];
  owned_ = cuts.points->local_shape()[rows];
  const auto blocks = cuts.blocks();
  if (blocks.size() == 1) {
    numbers_ = row_numbers(indices, n, op);
    return;
  }

  const ComputedValues facts;  // the number of ranks makes them large
  // A row's key: the rank that holds it, then its place in that rank's table [batch * block, D].
  const auto holders = cuts.holders();
  const int64_t ranks = mesh_->size(), stride = std::max<int64_t>(1, batch_ * n);
  std::vector<int64_t> ends, begins, holder(holders.begin(), holders.end());
  for (const auto& [begin, end] : blocks) {
    begins.push_back(begin);
    ends.push_back(end);
  }
  const auto looked_up = [&](const std::vector<int64_t>& by_block, const at::Tensor& block) {
    return at::tensor(by_block, at::kLong).index_select(0, block.reshape(-1)).view(block.sizes());
  };
  // Wrong indices ask for nothing here; every rank learns of them below.
  const at::Tensor valid = indices.ge(0).logical_and_(indices.lt(n)), index = indices.clamp_min(0);
  // Searching among the ends leaves out empty blocks.
  at::Tensor block = at::searchsorted(at::tensor(ends, at::kLong), index.contiguous(), false, true);
  block.clamp_max_(static_cast<int64_t>(blocks.size()) - 1);
  const at::Tensor begin = looked_up(begins, block);
  std::vector<int64_t> along(indices.dim(), 1);
  along[0] = batch_;
  const at::Tensor entry = at::arange(batch_, at::kLong).view(along);
  const at::Tensor key = looked_up(holder, block) * stride + entry * (looked_up(ends, block) - begin) + (index - begin);
  const auto [asked, place] = at::_unique(key.masked_select(valid), /*sorted=*/true, /*return_inverse=*/true);
  numbers_ = at::full(indices.sizes(), asked.numel(), at::kLong).masked_scatter_(valid, place);

  Communicator& group = mesh_->group();
  const TrafficScope moving(Traffic::kDataDependent);
  const auto [lowest, highest] = range_of(indices);
  const at::Tensor counts =
      at::cat({at::bincount(at::floor_divide(asked, stride), {}, ranks), at::tensor({lowest, highest}, at::kLong)});
  const at::Tensor table = group.facts_of_all(counts);
  check_range({table.select(1, ranks).min().item<int64_t>(), table.select(1, ranks + 1).max().item<int64_t>()}, n, op);
  for (int64_t r = 0; r < ranks; ++r) {
    asks_.push_back(table[mesh_->rank()][r].item<int64_t>());
    serves_.push_back(table[r][mesh_->rank()].item<int64_t>());
  }
  largest_ = table.narrow(1, 0, ranks).max().item<int64_t>();
  served_ = at::empty({c10::sum_integers(serves_)}, at::kLong);
  group.all_to_all(at::remainder(asked, stride), asks_, served_, serves_, largest_);
}

at::Tensor PointRoute::travel(const at::Tensor& rows, bool home) const {
  const int64_t features = rows.size(1);
  const auto &from = home ? asks_ : serves_, &to = home ? serves_ : asks_;
  at::Tensor arrived = at::empty({c10::sum_integers(to), features}, rows.options());
  const TrafficScope moving(Traffic::kDataDependent);
  mesh_->group().all_to_all(rows.contiguous(), times(from, features), arrived, times(to, features),
                            largest_ * features);
  return arrived;
}

at::Tensor PointRoute::fetch(const at::Tensor& points) const {
  const at::Tensor table = points.reshape({batch_ * owned_, points.size(-1)});
  if (!served_.defined()) return rows_at(table, numbers_);
  return rows_at(travel(table.index_select(0, served_), false), numbers_);
}

at::Tensor PointRoute::add(const at::Tensor& grad) const {
  const int64_t features = grad.size(-1);
  at::Tensor table;
  if (!served_.defined()) {
    table = add_rows_at(grad, numbers_, batch_ * owned_);
  } else {
    const at::Tensor rows = travel(add_rows_at(grad, numbers_, c10::sum_integers(asks_)), true);
    table = add_rows_at(rows, served_, batch_ * owned_);
  }
  return table.reshape({batch_, owned_, features});
}

}  // namespace moonhalo
