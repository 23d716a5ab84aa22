// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/points/ring_search.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/ops/points/arguments.h"

namespace moonhalo {
namespace {

using Messages = std::vector<Message>;

void add(Messages& messages, int peer, const at::Tensor& data) {
  if (data.numel() > 0) messages.push_back({peer, data});
}

}  // namespace

PointRound::PointRound(const PointCuts& cuts, int64_t most, std::optional<double> radius, at::ScalarType dtype)
    : mesh_(cuts.points->mesh()),
      blocks_(cuts.blocks()),
      holders_(cuts.holders()),
      batch_dims_(cuts.points->ndim() - 2),
      most_(most),
      radius_(radius) {
  own_ = cuts.points->block_index(batch_dims_, mesh_->rank());
  for (const int rank : holders_) queries_.push_back(cuts.query->block_range(batch_dims_, rank).size());
  // Per batch entry and rank passed, of a whole line; lines have queries in equal parts, more or less.
  const auto size = static_cast<double>(c10::elementSize(dtype));
  const double features = static_cast<double>(cuts.points->global_shape().back()) * size,
               lines = static_cast<double>(cuts.query->block_sizes(batch_dims_).size()) /
                       static_cast<double>(blocks_.size()),
               candidates = static_cast<double>(most) * (size + 8) + 16;
  queries_are_sent_ = static_cast<double>(cuts.query->global_shape()[batch_dims_]) / lines * (features + candidates) <
                      static_cast<double>(cuts.points->global_shape()[batch_dims_]) * features;
}

NeighborLists PointRound::lists_for(const at::Tensor& query) const {
  return {query.size(0), query.size(1), most_, radius_, query.scalar_type()};
}

NeighborLists PointRound::search(const at::Tensor& query, const at::Tensor& points) const {
  const at::Tensor q = one_batch(query, batch_dims_), block = one_batch(points, batch_dims_);
  NeighborLists lists = queries_are_sent_ && blocks_.size() > 1 ? pass_queries(q, block) : pass_points(q, block);
  lists.finish();
  return lists;
}

NeighborLists PointRound::pass_points(const at::Tensor& query, at::Tensor block) const {
  NeighborLists lists = lists_for(query);
  const auto count = static_cast<int64_t>(blocks_.size());
  const TrafficScope moving(Traffic::kRing);
  const int from = holders_[(own_ + 1) % count], to = holders_[(own_ + count - 1) % count];
  for (int64_t step = 0; step < count; ++step) {
    const int64_t held = (own_ + step) % count;
    at::Tensor arriving;
    WorkPtr work;
    if (step + 1 < count) {
      const auto [begin, end] = blocks_[(held + 1) % count];
      arriving = at::empty({block.size(0), end - begin, block.size(2)}, block.options());
      Messages sends, receives;
      add(sends, to, block);
      add(receives, from, arriving);
      work = mesh_->group().exchange_async(std::move(sends), std::move(receives));
    }
    lists.search(query, block, blocks_[held].begin);
    if (work) work->wait();
    if (step + 1 < count) block = arriving;
  }
  return lists;
}

NeighborLists PointRound::pass_queries(const at::Tensor& query, const at::Tensor& block) const {
  const TrafficScope moving(Traffic::kRing);
  const auto count = static_cast<int64_t>(blocks_.size());
  std::vector<at::Tensor> asked(count);
  Messages sends, receives;
  for (int64_t i = 0; i < count; ++i) {
    if (i == own_) continue;
    asked[i] = at::empty({query.size(0), queries_[i], query.size(2)}, query.options());
    add(sends, holders_[i], query);
    add(receives, holders_[i], asked[i]);
  }
  const WorkPtr under_way = mesh_->group().exchange_async(std::move(sends), std::move(receives));
  NeighborLists lists = lists_for(query);
  lists.search(query, block, blocks_[own_].begin);
  under_way->wait();

  std::vector<NeighborLists> found, arriving;
  sends.clear();
  receives.clear();
  for (int64_t i = 0; i < count; ++i) {
    if (i == own_) continue;
    found.push_back(lists_for(asked[i]));
    found.back().search(asked[i], block, blocks_[own_].begin);
    arriving.push_back(lists_for(query));
    for (const at::Tensor& part : found.back().parts()) add(sends, holders_[i], part);
    for (const at::Tensor& part : arriving.back().parts()) add(receives, holders_[i], part);
  }
  mesh_->group().exchange(std::move(sends), std::move(receives));
  for (const NeighborLists& other : arriving) lists.join(other);
  return lists;
}

}  // namespace moonhalo
