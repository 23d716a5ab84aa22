// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/conv_spread.h"

#include <algorithm>

namespace moonhalo {
namespace {

// Rows that add to the outputs `out`: fewer than input_needed where the stride is wider than the window.
Interval feeding(const Window& window, const Interval& out) {
  auto [begin, end] = window.input_needed(out);
  const auto ends_before = [&](int64_t row) {
    return row * window.stride - window.padding + window.reach() <= out.begin;
  };
  const auto begins_after = [&](int64_t row) { return row * window.stride - window.padding >= out.end; };
  while (begin < end && ends_before(begin)) ++begin;
  while (begin < end && begins_after(end - 1)) --end;
  return begin < end ? Interval{begin, end} : Interval{0, 0};
}

ConvSpread::Part part_of(const Box& box, const SpecPtr& input, const SpecPtr& output,
                         const std::vector<Window>& windows) {
  ConvSpread::Part part;
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto dim = static_cast<int64_t>(i) + 2;
    const Window& window = windows[i];
    if (!spans_ranks(input, dim)) {
      part.padding.push_back(-1);
      part.crop.push_back(0);
      part.first.push_back(0);
      part.count.push_back(output->local_shape()[dim]);
      continue;
    }
    const auto [out_begin, out_end] = output->block_range(dim, input->mesh()->rank());
    const auto [begin, end] = box[dim];
    if (begin >= end) return {};
    const int64_t full_begin = begin * window.stride - window.padding;
    const int64_t full_end = (end - 1) * window.stride - window.padding + window.reach();
    const int64_t from = std::max(full_begin, out_begin), to = std::min(full_end, out_end);
    if (from >= to) return {};
    // What both ends have too much is cut off by the kernel's own padding.
    const int64_t both = std::min(from - full_begin, full_end - to);
    part.padding.push_back(both);
    part.crop.push_back(from - full_begin - both);
    part.first.push_back(from - out_begin);
    part.count.push_back(to - from);
  }
  part.gives = true;
  return part;
}

}  // namespace

std::optional<ConvSpread> conv_spread(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows) {
  std::vector<int64_t> cut;
  for (int64_t d = 2; d < input->ndim(); ++d) {
    if (spans_ranks(input, d)) cut.push_back(d);
  }
  ConvSpread spread;
  spread.borrowed = borrowed_boxes(
      input, cut, [&](int64_t d, int64_t rank) { return feeding(windows[d - 2], block_rows(*output, d, rank)); });
  if (std::none_of(spread.borrowed.begin(), spread.borrowed.end(),
                   [](const BorrowedBox& part) { return part.map->exchanges(); }))
    return std::nullopt;
  spread.owned = part_of(block_box(*input, input->mesh()->rank()), input, output, windows);
  for (const BorrowedBox& part : spread.borrowed) spread.parts.push_back(part_of(part.box, input, output, windows));
  return spread;
}

}  // namespace moonhalo
