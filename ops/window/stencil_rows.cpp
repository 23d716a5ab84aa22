// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/window/stencil_rows.h"

#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>

#include <algorithm>
#include <cmath>

#include "moonhalo/engine/base/device_constant.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/exchange/boundary_index.h"

namespace moonhalo {
namespace {

const std::vector<std::string> kBoundaries = {"zeros", "circular", "reflect", "replicate", "one_sided"};

Boundary boundary_of(const std::string& boundary) {
  const auto found = std::find(kBoundaries.begin(), kBoundaries.end(), boundary);
  TORCH_CHECK_VALUE(found != kBoundaries.end(), "stencil: unknown boundary '", boundary, "'",
                    did_you_mean(boundary, kBoundaries),
                    "\n  have  zeros, circular, reflect, replicate, one_sided\n  fix   name one of them");
  const Boundary boundaries[] = {Boundary::kZero, Boundary::kCircular, Boundary::kReflect, Boundary::kReplicate,
                                 Boundary::kZero};
  return boundaries[found - kBoundaries.begin()];
}

std::vector<double> scaled(std::vector<double> weights, double factor) {
  for (double& weight : weights) weight *= factor;
  return weights;
}

}  // namespace

std::vector<double> finite_difference_weights(int64_t derivative, const std::vector<double>& places, double at) {
  const auto count = static_cast<int64_t>(places.size());
  TORCH_CHECK_VALUE(derivative >= 0 && count > derivative, "finite_difference_weights: derivative ", derivative,
                    " from ", count, " places\n  have  at least derivative + 1 are needed\n  fix   give more places");
  // weights[d][k]: of derivative d with the places so far; the places join one by one.
  std::vector<std::vector<double>> weights(derivative + 1, std::vector<double>(count, 0));
  weights[0][0] = 1;
  double scale = 1, before = places[0] - at;
  for (int64_t n = 1; n < count; ++n) {
    const double here = places[n] - at;
    double product = 1;
    const std::vector<std::vector<double>> old = weights;
    const auto old_of = [&](int64_t d, int64_t k) { return d < 0 ? 0.0 : old[d][k]; };
    for (int64_t k = 0; k < n; ++k) {
      const double apart = places[n] - places[k];
      TORCH_CHECK_VALUE(apart != 0, "finite_difference_weights: place ", places[n], " is given twice\n  have  places ",
                        places, "\n  fix   give each place once");
      product *= apart;
      for (int64_t d = 0; d <= derivative; ++d) weights[d][k] = (here * old[d][k] - d * old_of(d - 1, k)) / apart;
    }
    for (int64_t d = 0; d <= derivative; ++d)
      weights[d][n] = scale / product * (d * old_of(d - 1, n - 1) - before * old[d][n - 1]);
    scale = product;
    before = here;
  }
  return weights[derivative];
}

StencilRows::StencilRows(const Stencil& options, at::IntArrayRef shape, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(at::isFloatingType(dtype) || at::isComplexType(dtype), "stencil: a tensor of ", dtype,
                   "\n  have  a sum with fractional weights\n  fix   convert it to a floating type");
  TORCH_CHECK_VALUE(!shape.empty(),
                    "stencil: a tensor without dims\n  have  no rows\n  fix   give a tensor of at least one dim");
  dim_ = at::maybe_wrap_dim(options.dim, static_cast<int64_t>(shape.size()));
  extent_ = shape[dim_];
  TORCH_CHECK_VALUE(options.offsets.has_value() == options.weights.has_value(),
                    "stencil: offsets and weights belong together\n  have  only ",
                    options.offsets ? "offsets" : "weights", "\n  fix   give both, or neither");
  const std::string boundary = options.boundary.value_or(options.weights ? "zeros" : "one_sided");
  boundary_ = boundary_of(boundary);
  const bool one_sided = boundary == "one_sided";
  if (options.weights) {
    TORCH_CHECK_VALUE(
        options.derivative == 1 && options.order == 2 && options.spacing == 1, "stencil: derivative ",
        options.derivative, ", order ", options.order, " and spacing ", options.spacing,
        " with weights of one's own\n  have  weights ", *options.weights,
        ", which are taken as they are\n  fix   divide them by a power of the spacing, and leave the three out");
    offsets_ = *options.offsets;
    weights_ = *options.weights;
    TORCH_CHECK_VALUE(offsets_.size() == weights_.size() && !offsets_.empty(), "stencil: ", offsets_.size(),
                      " offsets and ", weights_.size(), " weights\n  have  offsets ", offsets_,
                      "\n  fix   give a weight for every offset");
    TORCH_CHECK_VALUE(!one_sided, "stencil: weights of one's own have no one-sided form\n  have  boundary 'one_sided'",
                      "\n  fix   choose zeros, circular, reflect or replicate");
    return;
  }
  const int64_t m = options.derivative, order = options.order;
  TORCH_CHECK_VALUE(m >= 0 && order >= 2 && order % 2 == 0, "stencil: derivative ", m, " of order ", order,
                    "\n  have  central differences\n  fix   give a derivative of at least 0 and an even order");
  TORCH_CHECK_VALUE(std::isfinite(options.spacing) && options.spacing != 0, "stencil: the spacing is ", options.spacing,
                    "\n  have  rows that are nowhere\n  fix   give the distance of neighbouring rows");
  const double factor = std::pow(options.spacing, -static_cast<double>(m));
  const int64_t half = (m + 1) / 2 + order / 2 - 1;
  std::vector<double> places;
  for (int64_t offset = -half; offset <= half; ++offset) {
    offsets_.push_back(offset);
    places.push_back(static_cast<double>(offset));
  }
  weights_ = scaled(finite_difference_weights(m, places), factor);
  if (!one_sided) return;
  edge_rows_ = half;
  edge_points_ = m + order;
  TORCH_CHECK_VALUE(extent_ >= edge_points_ || extent_ == 0, "stencil: ", extent_, " rows along dim ", dim_,
                    " are too few\n  have  derivative ", m, " of order ", order, " one-sided, which takes ",
                    edge_points_, "\n  fix   lower the order, or choose another boundary");
  places.clear();
  for (int64_t point = 0; point < edge_points_; ++point) places.push_back(static_cast<double>(point));
  for (int64_t row = 0; row < half; ++row) {
    const auto low = finite_difference_weights(m, places, static_cast<double>(row));
    for (const double weight : low) {
      low_.push_back(weight * factor);
      high_.push_back(m % 2 == 0 ? weight * factor : -weight * factor);
    }
  }
}

Interval StencilRows::needed(const Interval& out) const {
  if (out.empty()) return {0, 0};
  const auto [low, high] = std::minmax_element(offsets_.begin(), offsets_.end());
  Interval rows = {out.begin + std::min<int64_t>(*low, 0), out.end + std::max<int64_t>(*high, 0)};
  if (edge_rows_ == 0) return rows;
  if (out.begin < edge_rows_) rows = {0, std::max(rows.end, edge_points_)};
  if (out.end > extent_ - edge_rows_) rows = {std::min(rows.begin, extent_ - edge_points_), extent_};
  return {std::max<int64_t>(rows.begin, 0), std::min(rows.end, extent_)};
}

void StencilRows::for_each_run(const Interval& out,
                               const std::function<void(int64_t, int64_t, int64_t, double)>& each) const {
  const int64_t begin = std::max(out.begin, edge_rows_), end = std::min(out.end, extent_ - edge_rows_);
  for (size_t k = 0; k < offsets_.size() && begin < end; ++k) {
    if (weights_[k] != 0) each(begin, end - begin, begin + offsets_[k], weights_[k]);
  }
  for (int64_t row = 0; row < edge_rows_; ++row) {
    const int64_t opposite = extent_ - 1 - row;
    for (int64_t point = 0; point < edge_points_; ++point) {
      const size_t at = row * edge_points_ + point;
      if (out.contains(row)) each(row, 1, point, low_[at]);
      if (out.contains(opposite)) each(opposite, 1, extent_ - 1 - point, high_[at]);
    }
  }
}

at::Tensor StencilRows::apply(const at::Tensor& rows, const Interval& out) const {
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[dim_] = out.size();
  at::Tensor result = at::zeros(shape, rows.options());
  const int64_t first = needed(out).begin;
  for_each_run(out, [&](int64_t to, int64_t count, int64_t from, double weight) {
    result.narrow(dim_, to - out.begin, count).add_(rows.narrow(dim_, from - first, count), weight);
  });
  return result;
}

at::Tensor StencilRows::adjoint(const at::Tensor& grad, const Interval& out) const {
  std::vector<int64_t> shape = grad.sizes().vec();
  const Interval rows = needed(out);
  shape[dim_] = rows.size();
  at::Tensor result = at::zeros(shape, grad.options());
  for_each_run(out, [&](int64_t to, int64_t count, int64_t from, double weight) {
    result.narrow(dim_, from - rows.begin, count).add_(grad.narrow(dim_, to - out.begin, count), weight);
  });
  return result;
}

at::Tensor StencilRows::stands_for(const Interval& beyond, const at::Tensor& like) const {
  std::vector<int64_t> sources;
  for (int64_t i = beyond.begin; i < beyond.end; ++i) sources.push_back(boundary_index(i, extent_, boundary_));
  return constant_on(like.options().dtype(at::kLong), sources);
}

at::Tensor StencilRows::apply_whole(const at::Tensor& x) const {
  const Interval out = {0, extent_}, rows = needed(out);
  if (rows == out) return apply(x, out);
  const auto margin = [&](const Interval& beyond) {
    if (boundary_ != Boundary::kZero) return x.index_select(dim_, stands_for(beyond, x));
    std::vector<int64_t> shape = x.sizes().vec();
    shape[dim_] = beyond.size();
    return at::zeros(shape, x.options());
  };
  return apply(at::cat({margin({rows.begin, 0}), x, margin({extent_, rows.end})}, dim_), out);
}

at::Tensor StencilRows::adjoint_whole(const at::Tensor& grad) const {
  const Interval out = {0, extent_}, rows = needed(out);
  const at::Tensor all = adjoint(grad, out);
  if (rows == out) return all;
  at::Tensor result = all.narrow(dim_, -rows.begin, extent_).clone(at::MemoryFormat::Contiguous);
  if (boundary_ == Boundary::kZero) return result;
  for (const Interval& beyond : {Interval{rows.begin, 0}, Interval{extent_, rows.end}})
    result.index_add_(dim_, stands_for(beyond, grad), all.narrow(dim_, beyond.begin - rows.begin, beyond.size()));
  return result;
}

}  // namespace moonhalo
