// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/conv_strips.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace moonhalo {
namespace {

// One rank's rows and outputs along the dim, and what the window needs.
struct Share {
  Share(const SpecPtr& input, const SpecPtr& output, int64_t dim, const Window& window, int64_t rank)
      : rows(block_rows(*input, dim, rank)), out(block_rows(*output, dim, rank)), need(window.input_needed(out)) {}
  int64_t extent() const { return rows.size(); }
  int64_t outputs() const { return out.size(); }
  int64_t padding() const { return rows.begin - need.begin; }

  Interval rows, out, need;
};

// Local output j reads the owned rows from j * stride - padding on.
void measure_low(ConvStrips::Strip& low, const Share& mine, const Window& window) {
  const int64_t padding = mine.padding();
  low.outputs = std::min((padding + window.stride - 1) / window.stride, mine.outputs());
  low.rows = (low.outputs - 1) * window.stride + window.reach();
  low.borrowed = std::min(padding, low.rows);
}

void measure_high(ConvStrips::Strip& high, const Share& mine, const Window& window) {
  const int64_t padding = mine.padding();
  // Start of the last window that ends inside, plus padding.
  const int64_t last_within = mine.extent() + padding - window.reach();
  high.first_output = last_within < 0 ? 0 : last_within / window.stride + 1;
  high.outputs = mine.outputs() - high.first_output;
  const int64_t start = high.first_output * window.stride - padding;
  high.rows = (high.outputs - 1) * window.stride + window.reach();
  high.target = std::max<int64_t>(mine.extent() - start, 0);
  high.source = std::max<int64_t>(start - mine.extent(), 0);
  high.borrowed = high.rows - high.target;
}

}  // namespace

at::Tensor ConvStrips::Strip::fill(const at::Tensor& borrowed_rows) const {
  std::vector<int64_t> shape = borrowed_rows.sizes().vec();
  shape[dim] = rows;
  at::Tensor strip = at::zeros(shape, borrowed_rows.options());
  strip.narrow(dim, target, borrowed).copy_(borrowed_rows.narrow(dim, source, borrowed));
  return strip;
}

at::Tensor ConvStrips::Strip::gradient(const at::Tensor& strip_gradient) const {
  const at::Tensor part = strip_gradient.narrow(dim, target, borrowed);
  if (borrowed == halo->needed_shape()[dim]) return part;
  at::Tensor whole = at::zeros(halo->needed_shape(), strip_gradient.options());
  whole.narrow(dim, source, borrowed).copy_(part);
  return whole;
}

std::optional<ConvStrips> conv_strips(const SpecPtr& input, const SpecPtr& output, const std::vector<Window>& windows) {
  const int64_t ranks = input->mesh()->size(), me = input->mesh()->rank(), ndim = input->ndim();
  const auto window = [&](int64_t dim) { return windows[dim - 2]; };
  const auto share_of = [&](int64_t dim, int64_t rank) { return Share(input, output, dim, window(dim), rank); };
  std::vector<int64_t> cut;
  for (int64_t dim = 2; dim < ndim; ++dim) {
    if (!spans_ranks(input, dim)) continue;
    cut.push_back(dim);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Share share = share_of(dim, rank);
      if (share.outputs() == 0) continue;
      const Window local{window(dim).kernel, window(dim).stride, window(dim).dilation, share.padding()};
      const bool fits =
          share.extent() > 0 && share.padding() >= 0 && window_outputs(local, share.extent()) == share.outputs();
      if (!fits) return std::nullopt;
    }
  }

  // What a rank borrows for one strip: of dims after `across` all that it needs, of those before what it owns.
  const auto requests_of = [=](int64_t across, bool low, int64_t rank) {
    Box box = block_box(*input, rank);
    for (const int64_t d : cut) {
      const Share share(input, output, d, windows[d - 2], rank);
      Interval rows = d < across ? share.rows : share.need;
      const int64_t domain = input->global_shape()[d];
      if (d == across && low) rows = {share.need.begin, share.rows.begin};
      if (d == across && !low) rows = {share.rows.end, share.need.end};
      const bool outside = d == across && (low ? share.rows.begin == 0 : share.rows.end == domain);
      if (share.outputs() == 0 || outside || rows.empty()) rows = {0, 0};
      box[d] = rows;
    }
    return requests_for(box);
  };
  ConvStrips result;
  result.padding.assign(windows.size(), -1);
  for (const int64_t d : cut) {
    const Share mine = share_of(d, me);
    result.padding[d - 2] = mine.outputs() > 0 ? mine.padding() : 0;
  }
  for (const int64_t d : cut) {
    for (const bool low : {true, false}) {
      ConvStrips::Strip strip;
      strip.dim = d;
      strip.halo = std::make_shared<const IntervalMap>(input, [&](int64_t rank) { return requests_of(d, low, rank); });
      strip.padding = result.padding;
      for (const int64_t other : cut) {
        if (other >= d) strip.padding[other - 2] = 0;
      }
      if (c10::multiply_integers(strip.halo->needed_shape()) > 0) {
        if (low) {
          measure_low(strip, share_of(d, me), window(d));
        } else {
          measure_high(strip, share_of(d, me), window(d));
        }
      }
      result.strips.push_back(std::move(strip));
    }
  }
  return result;
}

}  // namespace moonhalo
