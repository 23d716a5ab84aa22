// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/neighborhood/overlap.h"

#include <ATen/ATen.h>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {

using neighborhood::Axis;

NeighborhoodBlocks::Piece NeighborhoodBlocks::piece(const NeighborhoodCall& whole, const HaloSplit::Part& part) {
  Piece result{part.output, part.input, whole};
  for (int64_t i = 0; i < whole.spatial; ++i) {
    Axis& axis = result.call.axis(i);
    axis.query_begin = part.output[i + 1].begin;
    axis.queries = part.output[i + 1].size();
    axis.key_begin = part.input[i + 1].begin;
    axis.keys = part.input[i + 1].size();
  }
  return result;
}

NeighborhoodBlocks::NeighborhoodBlocks(const NeighborhoodCall& whole, const SpecPtr& query, const SpecPtr& value)
    : owned_(block_box(*query, query->mesh()->rank())) {
  HaloReach reach{query, query, {}};
  for (int64_t i = 0; i < whole.spatial; ++i) {
    if (!spans_ranks(query, i + 1)) continue;
    const Axis axis = whole.axis(i);
    reach.cut.push_back({i + 1, [axis](const Interval& queries) { return keys_reached(axis, queries); }, {}});
  }
  key_maps_ = halo_maps(reach, query);
  value_maps_ = value == query ? key_maps_ : halo_maps(reach, value);
  if (!exchanges()) return;
  HaloSplit split = split_outputs(reach, query->mesh()->rank());
  halo_rows_ = std::move(split.halo_rows);
  for (const HaloSplit::Part& slab : split.slabs) edges_.push_back(piece(whole, slab));
  if (split.interior->output.empty()) return;
  // Backward, one half hides what arrives and the other what leaves.
  HaloSplit::Part first = *split.interior, second = first;
  first.output[1].end = second.output[1].begin = (first.output[1].begin + first.output[1].end) / 2;
  interior_ = {piece(whole, first), piece(whole, second)};
}

at::Tensor NeighborhoodBlocks::mine(const at::Tensor& tensor, const Box& queries) const {
  return tensor.defined() ? part({tensor, owned_}, queries) : tensor;
}

void NeighborhoodBlocks::start_borrowing(HaloExchange& exchange, const at::Tensor& key, const at::Tensor& value,
                                         const Sources& sources) const {
  for (size_t i = 0; i < halo_rows_.size(); ++i) {
    exchange.add_gather(*key_maps_[i], key, 0, sources.key);
    exchange.add_gather(*value_maps_[i], value, 0, sources.value);
  }
  exchange.start();
}

// The owned keys and values, and those of every fetched box.
std::array<std::vector<Tile>, 2> NeighborhoodBlocks::at_hand(HaloExchange& exchange, const at::Tensor& key,
                                                             const at::Tensor& value) const {
  std::array<Tiles, 2> tiles{Tiles{{key, owned_}}, Tiles{{value, owned_}}};
  for (size_t i = 0; i < 2 * halo_rows_.size(); ++i) tiles[i % 2].push_back({exchange.gathered(i), halo_rows_[i / 2]});
  return tiles;
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
  for (const Piece& piece : edges_) attend(piece, assemble(piece.keys, keys, 0), assemble(piece.keys, values, 0));
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
  Tiles key_sums, value_sums;  // per fetched box
  for (size_t i = 0; i < halo_rows_.size(); ++i) {
    key_sums.push_back({at::zeros_like(keys[i + 1].data), halo_rows_[i]});
    value_sums.push_back({at::zeros_like(values[i + 1].data), halo_rows_[i]});
  }
  std::vector<std::tuple<at::Tensor, at::Tensor>> of_edges;
  for (const Piece& piece : edges_) {
    NeighborhoodGradients gradients(assemble(piece.keys, keys, 0), assemble(piece.keys, values, 0));
    add(gradients, piece);
    of_edges.push_back(gradients.finish());
    const auto& [of_key, of_value] = of_edges.back();
    for (const Tile& sum : key_sums) add_overlap(sum, {of_key, piece.keys});
    for (const Tile& sum : value_sums) add_overlap(sum, {of_value, piece.keys});
  }
  arriving.trace("edges");

  HaloExchange leaving;
  for (size_t i = 0; i < halo_rows_.size(); ++i) {
    leaving.add_scatter_add(*key_maps_[i], key_sums[i].data);
    leaving.add_scatter_add(*value_maps_[i], value_sums[i].data);
  }
  leaving.start();
  if (!interior_.empty()) add(inner, interior_[1]);
  auto [grad_key, grad_value] = inner.finish();
  for (size_t i = 0; i < edges_.size(); ++i) {
    add_overlap({grad_key, owned_}, {std::get<0>(of_edges[i]), edges_[i].keys});
    add_overlap({grad_value, owned_}, {std::get<1>(of_edges[i]), edges_[i].keys});
  }
  leaving.trace("interior");
  leaving.wait();
  for (size_t i = 0; i < halo_rows_.size(); ++i) {
    leaving.scattered(2 * i, grad_key);
    leaving.scattered(2 * i + 1, grad_value);
  }
  return {grad_query, std::move(grad_key), std::move(grad_value)};
}

}  // namespace moonhalo
