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

namespace {

// The padding with which the owned rows of a rank give exactly its outputs; none if LibTorch does not allow it.
std::optional<int64_t> padding_of_owned(const Interval& rows, const Interval& outputs, Window window, bool ceil_mode) {
  window.padding = rows.begin - window.input_needed(outputs).begin;
  // Blocks thinner than a window have no inner outputs, and LibTorch's averages in three dims refuse them.
  const bool fits = rows.size() >= window.reach() && window.padding >= 0 && 2 * window.padding <= window.kernel &&
                    pool_outputs(window, rows.size(), ceil_mode) == outputs.size();
  return fits ? std::optional(window.padding) : std::nullopt;
}

// Along a cut dim, the outputs whose windows lie within the owned rows, of the `outputs` of this rank.
Interval inner_outputs(const Interval& rows, int64_t outputs, int64_t extent, const Window& window, int64_t padding) {
  const auto at_edge = [&](int64_t row) { return row == 0 || row == extent; };
  // Where the domain itself ends, its padding is the block's; only if the window agrees.
  const int64_t low = at_edge(rows.begin) && padding == window.padding
                          ? 0
                          : std::min((padding + window.stride - 1) / window.stride, outputs);
  // Start of the last window that ends inside, plus padding.
  const int64_t last_within = rows.size() + padding - window.reach();
  const int64_t high = at_edge(rows.end) ? outputs
                       : last_within < 0 ? 0
                                         : std::min(last_within / window.stride + 1, outputs);
  return {low, std::max(low, high)};
}

// The strip that gives a box of this rank's outputs.
PoolEdges::Strip strip_of(const Box& outputs, const PoolEdges& edges, const SpecPtr& input, const SpecPtr& output,
                          const std::vector<Window>& windows) {
  PoolEdges::Strip strip;
  strip.box = edges.owned;
  const int64_t first = input->ndim() - static_cast<int64_t>(windows.size());
  for (int64_t d = 0; d < input->ndim(); ++d) {
    strip.first_output.push_back(outputs[d].begin);
    strip.outputs.push_back(outputs[d].size());
    if (d < first) continue;
    const Window& window = windows[d - first];
    const bool cut = spans_ranks(input, d);
    strip.padding.push_back(cut ? 0 : window.padding);
    if (cut) strip.box[d] = window.input_needed(outputs[d].shifted(output->offsets()[d]));
  }
  return strip;
}

}  // namespace

std::optional<PoolEdges> pool_edges(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows,
                                    bool ceil_mode) {
  const int64_t ndim = input->ndim(), first = ndim - static_cast<int64_t>(windows.size());
  const int64_t me = input->mesh()->rank();
  PoolEdges edges;
  std::vector<int64_t> cut;
  for (int64_t d = first; d < ndim; ++d) {
    edges.padding.push_back(windows[d - first].padding);
    if (!spans_ranks(input, d)) continue;
    cut.push_back(d);
    for (int64_t rank = 0; rank < input->mesh()->size(); ++rank) {
      const Interval outputs = block_rows(*output, d, rank);
      if (outputs.empty()) continue;
      const auto padding = padding_of_owned(block_rows(*input, d, rank), outputs, windows[d - first], ceil_mode);
      if (!padding) return std::nullopt;
      if (rank == me) edges.padding.back() = *padding;
    }
  }
  edges.borrowed = borrowed_boxes(input, cut, [&](int64_t d, int64_t rank) {
    return windows[d - first].input_needed(block_rows(*output, d, rank));
  });
  if (std::none_of(edges.borrowed.begin(), edges.borrowed.end(),
                   [](const BorrowedBox& part) { return part.map->exchanges(); }))
    return std::nullopt;

  // The outputs that no strip of the dims before has taken.
  edges.owned = block_box(*input, me);
  Box left;
  for (const int64_t outputs : output->local_shape()) left.push_back({0, outputs});
  for (const int64_t d : cut) {
    const Interval inner = inner_outputs(edges.owned[d], left[d].end, input->global_shape()[d], windows[d - first],
                                         edges.padding[d - first]);
    for (const Interval& outputs : {Interval{0, inner.begin}, Interval{inner.end, left[d].end}}) {
      Box strip = left;
      strip[d] = outputs;
      if (!strip.empty()) edges.strips.push_back(strip_of(strip, edges, input, output, windows));
    }
    left[d] = inner;
  }
  return edges;
}

}  // namespace moonhalo
