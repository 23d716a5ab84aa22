// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/neighborhood/overlap.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

using neighborhood::Axis;

namespace {

// The owned queries whose windows lie within the owned keys.
Interval within(const Axis& axis, const Interval& owned) {
  Interval inner = owned;
  for (int64_t query = owned.begin; query < owned.end; ++query) {
    const Interval keys = keys_reached(axis, {query, query + 1});
    if (keys.begin < owned.begin) inner.begin = query + 1;
  }
  for (int64_t query = owned.end; query-- > inner.begin;) {
    const Interval keys = keys_reached(axis, {query, query + 1});
    if (keys.end > owned.end) inner.end = query;
  }
  return inner;
}

}  // namespace

// `box`, as a part of a tensor that holds `of`.
at::Tensor NeighborhoodBlocks::part(const at::Tensor& tensor, const Box& of, const Box& box) {
  at::Tensor result = tensor;
  for (int64_t i = 0; i < box.ndim(); ++i) {
    const int64_t length = box[i].size();
    if (length != of[i].size()) result = result.narrow(i + 1, length > 0 ? box[i].begin - of[i].begin : 0, length);
  }
  return result;
}

at::Tensor NeighborhoodBlocks::mine(const at::Tensor& tensor, const Box& queries) const {
  return tensor.defined() ? part(tensor, owned_, queries) : tensor;
}

at::Tensor NeighborhoodBlocks::assembled(const Box& box, const std::vector<Source>& sources) {
  std::vector<int64_t> shape = sources[0].rows.sizes().vec();
  for (int64_t i = 0; i < box.ndim(); ++i) shape[i + 1] = box[i].size();
  at::Tensor result = at::empty(shape, sources[0].rows.options());
  for (const Source& source : sources) {
    const Box both = box.intersect(*source.box);
    if (!both.empty()) part(result, box, both).copy_(part(source.rows, *source.box, both));
  }
  return result;
}

NeighborhoodBlocks::Piece NeighborhoodBlocks::piece(const NeighborhoodCall& whole, const Box& queries) const {
  Piece result{queries, owned_, whole};
  for (int64_t i = 0; i < queries.ndim(); ++i) {
    if (cut_[i]) result.keys[i] = keys_reached(whole.axis(i), queries[i]);
    Axis& axis = result.call.axis(i);
    axis.query_begin = queries[i].begin;
    axis.queries = queries[i].size();
    axis.key_begin = result.keys[i].begin;
    axis.keys = result.keys[i].size();
  }
  return result;
}

// Backward, one half hides what arrives and the other what leaves.
std::vector<NeighborhoodBlocks::Piece> NeighborhoodBlocks::halves(const Piece& whole) const {
  Piece first = whole;
  for (int64_t i = 0; i < owned_.ndim(); ++i) {
    Axis& axis = first.call.axis(i);
    axis.key_begin = owned_[i].begin;
    axis.keys = owned_[i].size();
  }
  first.keys = owned_;
  Piece second = first;
  const int64_t middle = (whole.queries[0].begin + whole.queries[0].end) / 2;
  first.queries[0].end = second.queries[0].begin = middle;
  first.call.axis(0).queries = middle - first.queries[0].begin;
  second.call.axis(0).query_begin = middle;
  second.call.axis(0).queries = second.queries[0].end - middle;
  return {std::move(first), std::move(second)};
}

NeighborhoodBlocks::NeighborhoodBlocks(const NeighborhoodCall& whole, const SpecPtr& query, const SpecPtr& value) {
  for (int64_t i = 0; i < whole.spatial; ++i) {
    owned_.push_back(block_rows(*query, i + 1, query->mesh()->rank()));
    cut_.push_back(spans_ranks(query, i + 1));
  }
  plan_shells(whole, query, value);
  if (exchanges_) plan_pieces(whole);
}

// What a rank borrows in one shell: of cut dims after `across` all that it needs, of those before what it owns of that.
Box NeighborhoodBlocks::shell_box(const NeighborhoodCall& whole, const SpecPtr& query, int64_t across, bool low,
                                  int64_t rank) const {
  Box box, none;
  for (int64_t i = 0; i < whole.spatial; ++i) {
    const Interval own = block_rows(*query, i + 1, rank);
    Interval rows = own;
    if (cut_[i]) {
      rows = keys_reached(whole.axis(i), own);
      if (i < across) rows = rows.intersect(own);
      if (i == across && low) rows.end = std::min(rows.end, own.begin);
      if (i == across && !low) rows.begin = std::max(rows.begin, own.end);
    }
    box.push_back(rows);
    none.push_back({0, 0});
  }
  return box.empty() ? none : box;
}

void NeighborhoodBlocks::plan_shells(const NeighborhoodCall& whole, const SpecPtr& query, const SpecPtr& value) {
  for (int64_t across = 0; across < whole.spatial; ++across) {
    for (const bool low : {true, false}) {
      if (!cut_[across]) continue;
      const auto map = [&](const SpecPtr& spec) {
        return std::make_shared<const IntervalMap>(spec, [&](int64_t rank) {
          const Box shell = shell_box(whole, query, across, low, rank);
          Box box = block_box(*spec, rank);
          for (int64_t i = 0; i < whole.spatial; ++i) box[i + 1] = shell[i];
          return requests_for(box);
        });
      };
      Shell shell{shell_box(whole, query, across, low, query->mesh()->rank()), map(query), nullptr};
      shell.value = value == query ? shell.key : map(value);
      exchanges_ |= shell.key->exchanges();
      shells_.push_back(std::move(shell));
    }
  }
}

// The owned queries: those near an edge of each cut dim, and the interior that is left.
void NeighborhoodBlocks::plan_pieces(const NeighborhoodCall& whole) {
  Box inner = owned_;
  for (int64_t i = 0; i < whole.spatial; ++i) {
    if (!cut_[i]) continue;
    const Interval interior = within(whole.axis(i), owned_[i]);
    Box low = inner, high = inner;
    low[i].end = std::min(interior.begin, owned_[i].end);
    high[i].begin = std::max(interior.end, low[i].end);
    for (const Box& edge : {low, high}) {
      if (!edge.empty()) edges_.push_back(piece(whole, edge));
    }
    inner[i] = {low[i].end, high[i].begin};
  }
  if (!inner.empty()) interior_ = halves(piece(whole, inner));
}

void NeighborhoodBlocks::start_borrowing(HaloExchange& exchange, const at::Tensor& key, const at::Tensor& value,
                                         const Sources& sources) const {
  for (const Shell& shell : shells_) {
    exchange.add_gather(*shell.key, key, 0, sources.key);
    exchange.add_gather(*shell.value, value, 0, sources.value);
  }
  exchange.start();
}

// The owned keys and values, and those of every shell.
NeighborhoodBlocks::AtHand NeighborhoodBlocks::at_hand(HaloExchange& exchange, const at::Tensor& key,
                                                       const at::Tensor& value) const {
  AtHand result{{{&owned_, key}}, {{&owned_, value}}};
  for (size_t i = 0; i < shells_.size(); ++i) {
    result.keys.push_back({&shells_[i].box, exchange.gathered(2 * i)});
    result.values.push_back({&shells_[i].box, exchange.gathered(2 * i + 1)});
  }
  return result;
}

std::tuple<at::Tensor, at::Tensor> NeighborhoodBlocks::forward(const at::Tensor& query, const at::Tensor& key,
                                                               const at::Tensor& value, const Sources& sources) const {
  HaloExchange exchange;
  start_borrowing(exchange, key, value, sources);
  const auto results = neighborhood_results(query, value);
  const at::Tensor &output = std::get<0>(results), &logsumexp = std::get<1>(results);
  const auto attend = [&](const Piece& piece, const at::Tensor& keys, const at::Tensor& values) {
    neighborhood_forward_into(mine(query, piece.queries), keys, values, mine(output, piece.queries),
                              mine(logsumexp, piece.queries), piece.call);
  };
  for (const Piece& piece : interior_) attend(piece, key, value);
  exchange.trace("interior");
  exchange.wait();
  const auto [keys, values] = at_hand(exchange, key, value);
  for (const Piece& piece : edges_) attend(piece, assembled(piece.keys, keys), assembled(piece.keys, values));
  exchange.trace("edges");
  return {output, logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> NeighborhoodBlocks::backward(
    const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& logsumexp, const Sources& sources) const {
  HaloExchange arriving;
  start_borrowing(arriving, key, value, sources);
  const at::Tensor grad_query = empty_block(query.sizes(), query.options());
  const auto add = [&](NeighborhoodGradients& gradients, const Piece& piece) {
    gradients.add(mine(grad_output, piece.queries), mine(grad_logsumexp, piece.queries), mine(query, piece.queries),
                  mine(output, piece.queries), mine(logsumexp, piece.queries), mine(grad_query, piece.queries),
                  piece.call);
  };
  NeighborhoodGradients inner(key, value);
  if (!interior_.empty()) add(inner, interior_[0]);
  arriving.trace("interior");
  arriving.wait();

  const auto [keys, values] = at_hand(arriving, key, value);
  std::vector<Source> key_sums, value_sums;  // per shell
  for (size_t i = 0; i < shells_.size(); ++i) {
    key_sums.push_back({&shells_[i].box, at::zeros_like(keys[i + 1].rows)});
    value_sums.push_back({&shells_[i].box, at::zeros_like(values[i + 1].rows)});
  }
  std::vector<std::tuple<at::Tensor, at::Tensor>> of_edges;
  const auto add_to = [](const Source& sum, const Box& box, const at::Tensor& gradient) {
    const Box both = box.intersect(*sum.box);
    if (!both.empty()) part(sum.rows, *sum.box, both).add_(part(gradient, box, both));
  };
  for (const Piece& piece : edges_) {
    NeighborhoodGradients gradients(assembled(piece.keys, keys), assembled(piece.keys, values));
    add(gradients, piece);
    of_edges.push_back(gradients.finish());
    const auto& [of_key, of_value] = of_edges.back();
    for (const Source& sum : key_sums) add_to(sum, piece.keys, of_key);
    for (const Source& sum : value_sums) add_to(sum, piece.keys, of_value);
  }
  arriving.trace("edges");

  HaloExchange leaving;
  for (size_t i = 0; i < shells_.size(); ++i) {
    leaving.add_scatter_add(*shells_[i].key, key_sums[i].rows);
    leaving.add_scatter_add(*shells_[i].value, value_sums[i].rows);
  }
  leaving.start();
  if (!interior_.empty()) add(inner, interior_[1]);
  auto [grad_key, grad_value] = inner.finish();
  for (size_t i = 0; i < edges_.size(); ++i) {
    add_to({&owned_, grad_key}, edges_[i].keys, std::get<0>(of_edges[i]));
    add_to({&owned_, grad_value}, edges_[i].keys, std::get<1>(of_edges[i]));
  }
  leaving.trace("interior");
  leaving.wait();
  for (size_t i = 0; i < shells_.size(); ++i) {
    leaving.scattered(2 * i, grad_key);
    leaving.scattered(2 * i + 1, grad_value);
  }
  return {grad_query, std::move(grad_key), std::move(grad_value)};
}

}  // namespace moonhalo
