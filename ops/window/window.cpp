// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/window.h"

#include <algorithm>

#include "moonhalo/engine/tensor/output_cut.h"
#include "moonhalo/ops/support/spec_edits.h"

namespace moonhalo {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// Each output block gets as many rows as the input's, while there are outputs; the last takes the rest.
std::vector<int64_t> kept_sizes(std::vector<int64_t> sizes, int64_t extent) {
  for (int64_t& size : sizes) {
    size = std::min(size, extent);
    extent -= size;
  }
  if (!sizes.empty()) sizes.back() += extent;
  return sizes;
}

}  // namespace

std::vector<int64_t> Window::output_sizes(const std::vector<int64_t>& input_sizes, int64_t out_extent) const {
  int64_t in_extent = 0;
  for (const int64_t size : input_sizes) in_extent += size;
  const OutputCut policy = output_cut();
  if (policy == OutputCut::kRebalance) return balanced_sizes(out_extent, static_cast<int64_t>(input_sizes.size()));
  if (policy == OutputCut::kKeep && stride == 1) return kept_sizes(input_sizes, out_extent);
  const int64_t half = (reach() - 1) / 2;
  std::vector<int64_t> sizes;
  int64_t end = 0, previous = 0;
  for (const int64_t size : input_sizes) {
    end += size;
    // Number of outputs whose centre is before row `end`.
    int64_t count = transposed ? end * stride - padding + half : ceil_div(end + padding - half, stride);
    count = std::clamp<int64_t>(count, previous, out_extent);
    if (end == 0) count = 0;
    if (end == in_extent) count = out_extent;  // of an empty domain all outputs (padding alone) go to the first block
    sizes.push_back(count - previous);
    previous = count;
  }
  return sizes;
}

Interval Window::input_needed(const Interval& out) const {
  const auto [begin, end] = out;
  if (begin >= end) return {0, 0};
  if (!transposed) return {begin * stride - padding, (end - 1) * stride - padding + reach()};
  // Where the stride is wider than the window some outputs have no input; a neighbouring row keeps
  // the result in step.
  const int64_t first = std::min(ceil_div(begin + padding - (reach() - 1), stride), floor_div(begin + padding, stride));
  const int64_t last = std::max(floor_div(end - 1 + padding, stride), ceil_div(end + padding - reach(), stride));
  return {first, last + 1};
}

Interval Window::input_read(const Interval& out) const {
  if (!transposed || out.empty()) return input_needed(out);
  const Interval rows{floor_div(out.begin + padding - reach(), stride) + 1,
                      floor_div(out.end - 1 + padding, stride) + 1};
  return rows.empty() ? Interval{0, 0} : rows;
}

Interval Window::outputs_fed(const Interval& rows) const {
  if (rows.empty()) return {0, 0};
  return {rows.begin * stride - padding, (rows.end - 1) * stride - padding + reach()};
}

int64_t window_outputs(const Window& window, int64_t in_extent) {
  return floor_div(in_extent + 2 * window.padding - window.reach(), window.stride) + 1;
}

std::vector<int64_t> resampled_sizes(const std::vector<int64_t>& input_sizes, int64_t out_extent) {
  if (output_cut() == OutputCut::kRebalance)
    return balanced_sizes(out_extent, static_cast<int64_t>(input_sizes.size()));
  return proportional_sizes(input_sizes, out_extent);
}

std::shared_ptr<const IntervalMap> window_map(const SpecPtr& input, const SpecPtr& output,
                                              const std::vector<Window>& windows) {
  const int64_t ndim = input->ndim(), first = ndim - static_cast<int64_t>(windows.size());
  bool cut = false;
  for (int64_t d = first; d < ndim; ++d) cut |= spans_ranks(input, d);
  if (!cut) return nullptr;
  const auto along = [&](int64_t dim, const Interval& owned, const Interval& outputs) {
    const bool reads = dim >= first && spans_ranks(input, dim);
    return HaloRequest{reads ? windows[dim - first].input_needed(outputs) : owned};
  };
  return std::make_shared<const IntervalMap>(input, GridRequests{output, along});
}

}  // namespace moonhalo
