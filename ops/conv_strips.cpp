// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_strips.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace moonhalo {
namespace {

// One rank's rows and outputs along the dim, and what the window needs.
struct Share {
  Share(const SpecPtr& input, const SpecPtr& output, int64_t dim, const Window& window,
        int64_t rank)
      : rows(input->block_range(dim, rank)),
        out(output->block_range(dim, rank)),
        need(window.input_needed(out)) {}
  int64_t extent() const { return rows.second - rows.first; }
  int64_t outputs() const { return out.second - out.first; }
  int64_t padding() const { return rows.first - need.first; }

  Rows rows, out, need;
};

}  // namespace

at::Tensor ConvStrips::Strip::fill(const at::Tensor& borrowed_rows, int64_t dim) const {
  std::vector<int64_t> shape = borrowed_rows.sizes().vec();
  shape[dim] = rows;
  at::Tensor strip = at::zeros(shape, borrowed_rows.options());
  strip.narrow(dim, target, borrowed).copy_(borrowed_rows.narrow(dim, source, borrowed));
  return strip;
}

at::Tensor ConvStrips::Strip::gradient(const at::Tensor& strip_gradient, int64_t dim) const {
  const at::Tensor part = strip_gradient.narrow(dim, target, borrowed);
  if (borrowed == halo->needed_shape()[dim]) return part;
  at::Tensor whole = at::zeros(halo->needed_shape(), strip_gradient.options());
  whole.narrow(dim, source, borrowed).copy_(part);
  return whole;
}

std::optional<ConvStrips> conv_strips(const SpecPtr& input, const SpecPtr& output, int64_t dim,
                                      const Window& window) {
  const int64_t ranks = input->mesh()->size(), domain = input->global_shape()[dim];
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Share share(input, output, dim, window, rank);
    if (share.outputs() == 0) continue;
    const Window local{window.kernel, window.stride, window.dilation, share.padding()};
    const bool fits = share.extent() > 0 && share.padding() >= 0 &&
                      window_outputs(local, share.extent()) == share.outputs();
    if (!fits) return std::nullopt;
  }

  const auto borrow = [&](bool low) {
    return std::make_shared<const IntervalMap>(input, [&](int64_t rank) {
      std::vector<Need> needs;
      for (int64_t d = 0; d < input->ndim(); ++d) {
        const auto [begin, end] = input->block_range(d, rank);
        needs.push_back({.begin = begin, .end = end});
      }
      const Share share(input, output, dim, window, rank);
      Rows rows{0, 0};
      if (share.outputs() > 0 && low && share.rows.first > 0 &&
          share.need.first < share.rows.first) {
        rows = {share.need.first, share.rows.first};
      }
      if (share.outputs() > 0 && !low && share.rows.second < domain &&
          share.need.second > share.rows.second) {
        rows = {share.rows.second, share.need.second};
      }
      needs[dim] = {.begin = rows.first, .end = rows.second};
      return needs;
    });
  };
  ConvStrips result;
  result.dim = dim;
  result.strips[0].halo = borrow(true);
  result.strips[1].halo = borrow(false);
  const Share mine(input, output, dim, window, input->mesh()->rank());
  result.padding = mine.outputs() > 0 ? mine.padding() : 0;

  // Local output j reads the owned rows from j * stride - padding on.
  const int64_t reach = window.reach(), padding = result.padding;
  if (ConvStrips::Strip& low = result.strips[0]; low.halo->needed_shape()[dim] > 0) {
    low.outputs = std::min((padding + window.stride - 1) / window.stride, mine.outputs());
    low.rows = (low.outputs - 1) * window.stride + reach;
    low.borrowed = std::min(padding, low.rows);
  }
  if (ConvStrips::Strip& high = result.strips[1]; high.halo->needed_shape()[dim] > 0) {
    const int64_t last_within =
        mine.extent() + padding - reach;  // start of the last window that ends inside, plus padding
    high.first_output = last_within < 0 ? 0 : last_within / window.stride + 1;
    high.outputs = mine.outputs() - high.first_output;
    const int64_t start = high.first_output * window.stride - padding;
    high.rows = (high.outputs - 1) * window.stride + reach;
    high.target = std::max<int64_t>(mine.extent() - start, 0);
    high.source = std::max<int64_t>(start - mine.extent(), 0);
    high.borrowed = high.rows - high.target;
  }
  return result;
}

}  // namespace moonhalo
