// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/pool_edges.h"

#include <algorithm>

namespace moonhalo {

int64_t pool_outputs(const Window& window, int64_t in_extent, bool ceil_mode) {
  if (!ceil_mode) return window_outputs(window, in_extent);
  const int64_t outputs = window_outputs(window, in_extent + window.stride - 1);
  // The last window must not begin in the high padding.
  return (outputs - 1) * window.stride >= in_extent + window.padding ? outputs - 1 : outputs;
}

std::optional<PoolEdges> pool_edges(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows,
                                    bool ceil_mode) {
  const int64_t ndim = input->ndim(), first = ndim - static_cast<int64_t>(windows.size());
  const int64_t me = input->mesh()->rank();
  const auto need = [&](int64_t d, int64_t rank) {
    return windows[d - first].input_needed(block_rows(*output, d, rank));
  };
  PoolEdges edges;
  std::vector<int64_t> cut;
  for (int64_t d = first; d < ndim; ++d) {
    edges.padding.push_back(windows[d - first].padding);
    if (!divided(input, d)) continue;
    cut.push_back(d);
    for (int64_t rank = 0; rank < input->mesh()->size(); ++rank) {
      const auto [begin, end] = input->block_range(d, rank);
      const auto [from, to] = output->block_range(d, rank);
      if (from == to) continue;
      Window local = windows[d - first];
      local.padding = begin - need(d, rank).begin;
      // Blocks thinner than a window have no inner outputs, and LibTorch's averages in three dims refuse them.
      const bool fits = end - begin >= local.reach() && local.padding >= 0 && 2 * local.padding <= local.kernel &&
                        pool_outputs(local, end - begin, ceil_mode) == to - from;
      if (!fits) return std::nullopt;
      if (rank == me) edges.padding.back() = local.padding;
    }
  }
  edges.borrowed = borrowed_boxes(input, cut, need);
  if (std::none_of(edges.borrowed.begin(), edges.borrowed.end(),
                   [](const BorrowedBox& part) { return part.map->exchanges(); }))
    return std::nullopt;

  // Per dim, the outputs that no strip of the dims before has taken.
  edges.owned = block_box(*input, me);
  Box left;
  for (const int64_t outputs : output->local_shape()) left.push_back({0, outputs});
  if (c10::multiply_integers(output->local_shape()) == 0) return edges;
  const auto add_strip = [&](const Box& outputs) {
    PoolEdges::Strip strip;
    strip.box = edges.owned;
    for (size_t i = 0; i < windows.size(); ++i) strip.padding.push_back(windows[i].padding);
    for (int64_t d = 0; d < ndim; ++d) {
      const auto [from, to] = outputs[d];
      if (from >= to) return;
      strip.first_output.push_back(from);
      strip.outputs.push_back(to - from);
      if (d < first || !divided(input, d)) continue;
      strip.box[d] = windows[d - first].input_needed(outputs[d].shifted(block_rows(*output, d, me).begin));
      strip.padding[d - first] = 0;
    }
    edges.strips.push_back(std::move(strip));
  };
  for (const int64_t d : cut) {
    const Window& window = windows[d - first];
    const auto [begin, end] = edges.owned[d];
    const int64_t outputs = left[d].end, padding = edges.padding[d - first];
    const auto at_edge = [&](int64_t row) { return row == 0 || row == input->global_shape()[d]; };
    // Where the domain itself ends, its padding is the block's; only if the window agrees.
    const int64_t low = at_edge(begin) && padding == window.padding
                            ? 0
                            : std::min((padding + window.stride - 1) / window.stride, outputs);
    // Start of the last window that ends inside, plus padding.
    const int64_t last_within = end - begin + padding - window.reach();
    const int64_t high = at_edge(end)      ? outputs
                         : last_within < 0 ? 0
                                           : std::min(last_within / window.stride + 1, outputs);
    Box strip = left;
    strip[d] = {0, low};
    add_strip(strip);
    strip[d] = {std::max(low, high), outputs};
    add_strip(strip);
    left[d] = {low, std::max(low, high)};
  }
  return edges;
}

}  // namespace moonhalo
