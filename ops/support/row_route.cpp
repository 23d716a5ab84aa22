// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/row_route.h"

#include <ATen/ATen.h>

#include <numeric>

#include "moonhalo/engine/comm/traffic.h"

namespace moonhalo {
namespace {

at::Tensor positions(const at::Tensor& chosen) { return chosen.nonzero().select(1, 0); }

std::vector<int64_t> on_host(const at::Tensor& numbers) {
  const at::Tensor host = numbers.cpu();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

// Sorted keys of the form rank * most + row: how many each rank has.
std::vector<int64_t> by_rank(const at::Tensor& keys, int64_t most, int64_t ranks) {
  return on_host(at::bincount(at::floor_divide(keys, most), {}, ranks));
}

// A stretch of rows of a tensor, to be sent or to arrive.
at::Tensor like_rows(const at::Tensor& table, int64_t dim, int64_t rows) {
  std::vector<int64_t> shape = table.sizes().vec();
  shape[dim] = rows;
  return at::empty(shape, table.options());
}

}  // namespace

RowRoute::RowRoute(MeshPtr mesh, const NamedRows& mine, int64_t most) : mesh_(std::move(mesh)) {
  const at::Tensor far = mine.holder.ne(mesh_->rank());
  const at::Tensor far_entries = positions(far);
  every_ = mine.row;
  if (far_entries.numel() == 0) return;
  far_entries_ = far_entries;
  near_entries_ = positions(far.logical_not());
  near_rows_ = mine.row.index_select(0, near_entries_);
  every_ = mine.row.masked_fill(far, 0);
  if (most == 0) return;
  const at::Tensor key = (mine.holder * most + mine.row).index_select(0, far_entries_);
  std::tie(asked_, far_rows_) = at::_unique(key, /*sorted=*/true, /*return_inverse=*/true);
  const auto counts = by_rank(asked_, most, mesh_->size());
  for (int64_t r = 0; r < mesh_->size(); ++r) {
    if (counts[r] > 0) arrives_.emplace_back(static_cast<int>(r), counts[r]);
  }
  asked_ = at::remainder(asked_, most);
}

RowRoute RowRoute::own(MeshPtr mesh, const NamedRows& mine) { return {std::move(mesh), mine, 0}; }

RowRoute RowRoute::known(MeshPtr mesh, const NamedRows& all, const at::Tensor& asker, int64_t most) {
  const int64_t rank = mesh->rank(), ranks = mesh->size();
  const at::Tensor entries = positions(asker.eq(rank));
  RowRoute route(std::move(mesh), {all.holder.index_select(0, entries), all.row.index_select(0, entries)}, most);
  const at::Tensor travels = all.holder.ne(asker);
  route.exchanges_ = travels.any().item<bool>();
  const at::Tensor key = (asker * most + all.row).masked_select(travels.logical_and_(all.holder.eq(rank)));
  const at::Tensor served = std::get<0>(at::_unique(key, /*sorted=*/true));
  const auto counts = by_rank(served, most, ranks);
  int64_t begin = 0;
  for (int64_t r = 0; r < ranks; begin += counts[r++]) {
    if (counts[r] > 0)
      route.serves_.emplace_back(static_cast<int>(r), at::remainder(served.narrow(0, begin, counts[r]), most));
  }
  return route;
}

RowRoute RowRoute::ask(MeshPtr mesh, const NamedRows& mine, int64_t most) {
  RowRoute route(std::move(mesh), mine, most);
  Communicator& group = route.mesh_->group();
  const int64_t ranks = group.size();
  const TrafficScope moving(Traffic::kDataDependent);
  const at::TensorOptions options = mine.row.options();
  at::Tensor any = at::full({1}, route.arrives_.empty() ? 0 : 1, options);
  group.all_reduce(any, ReduceOp::kMax);
  route.exchanges_ = any.item<int64_t>() > 0;
  if (!route.exchanges_) return route;
  at::Tensor counts = at::zeros({ranks}, at::kLong);
  for (const auto& [peer, rows] : route.arrives_) counts[peer] = rows;
  at::Tensor required = at::empty({ranks}, options);
  const std::vector<int64_t> ones(ranks, 1);
  group.all_to_all(counts.to(options.device()), ones, required, ones, /*largest=*/1);
  std::vector<Message> sends, receives;
  int64_t begin = 0;
  for (const auto& [peer, rows] : route.arrives_) {
    sends.push_back({peer, route.asked_.narrow(0, begin, rows).contiguous()});
    begin += rows;
  }
  const auto served = on_host(required);
  for (int64_t r = 0; r < ranks; ++r) {
    if (served[r] == 0) continue;
    route.serves_.emplace_back(static_cast<int>(r), at::empty({served[r]}, options));
    receives.push_back({static_cast<int>(r), route.serves_.back().second});
  }
  group.exchange(std::move(sends), std::move(receives));
  return route;
}

at::Tensor RowRoute::fetch(const at::Tensor& table, int64_t dim) const {
  WorkPtr work;
  std::vector<at::Tensor> arrived;
  if (exchanges_) {
    std::vector<Message> sends, receives;
    for (const auto& [peer, rows] : serves_) sends.push_back({peer, table.index_select(dim, rows).contiguous()});
    for (const auto& [peer, rows] : arrives_) {
      arrived.push_back(like_rows(table, dim, rows));
      receives.push_back({peer, arrived.back()});
    }
    const TrafficScope moving(Traffic::kDataDependent);
    work = mesh_->group().exchange_async(std::move(sends), std::move(receives));
  }
  // Rows of this rank meanwhile; the first row stands where another's will.
  at::Tensor result = table.size(dim) > 0 || !far_entries_.defined() ? table.index_select(dim, every_)
                                                                     : like_rows(table, dim, every_.numel());
  if (work) work->wait();
  if (!arrived.empty()) result.index_copy_(dim, far_entries_, at::cat(arrived, dim).index_select(dim, far_rows_));
  return result;
}

void RowRoute::add(const at::Tensor& entries, int64_t dim, const at::Scalar& alpha, const at::Tensor& table) const {
  WorkPtr work;
  std::vector<at::Tensor> arrived;
  if (exchanges_) {
    std::vector<Message> sends, receives;
    if (!arrives_.empty()) {
      at::Tensor sums = like_rows(entries, dim, asked_.numel()).zero_();
      sums.index_add_(dim, far_rows_, entries.index_select(dim, far_entries_), alpha);
      int64_t begin = 0;
      for (const auto& [peer, rows] : arrives_) {
        sends.push_back({peer, sums.narrow(dim, begin, rows).contiguous()});
        begin += rows;
      }
    }
    for (const auto& [peer, rows] : serves_) {
      arrived.push_back(like_rows(entries, dim, rows.numel()));
      receives.push_back({peer, arrived.back()});
    }
    const TrafficScope moving(Traffic::kDataDependent);
    work = mesh_->group().exchange_async(std::move(sends), std::move(receives));
  }
  const bool some = far_entries_.defined();
  table.index_add_(dim, some ? near_rows_ : every_, some ? entries.index_select(dim, near_entries_) : entries, alpha);
  if (work) work->wait();
  // In the order of the ranks, so that sums do not depend on who comes first.
  for (size_t i = 0; i < arrived.size(); ++i) table.index_add_(dim, serves_[i].second, arrived[i]);
}

}  // namespace moonhalo
