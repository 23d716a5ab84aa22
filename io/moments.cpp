// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/moments.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace moonhalo::io {
namespace {

/// Sums in as many parts, which are added in the end: fast, and in one order on every machine of a kind.
constexpr int64_t kLanes = 8;
using Lanes = std::array<double, kLanes>;

double total(const Lanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Calls add(lane, value, weight) for the values that are there.
template <typename T, typename Add>
void for_values(const T* values, const double* weights, int64_t count, const Add& add) {
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    if (!std::isnan(value)) add(static_cast<size_t>(i % kLanes), value, weights != nullptr ? weights[i] : 1.0);
  }
}

template <typename T>
void channel_moments(const T* values, const double* weights, int64_t count, double* out) {
  Lanes weight{}, sum{}, squares{};
  double number = 0, least = std::numeric_limits<double>::infinity(), greatest = -least;
  for_values(values, weights, count, [&](size_t lane, double value, double by) {
    weight[lane] += by;
    sum[lane] += by * value;
    number += 1;
    least = std::min(least, value);
    greatest = std::max(greatest, value);
  });
  const double all = total(weight), mean = all > 0 ? total(sum) / all : 0;
  for_values(values, weights, count,
             [&](size_t lane, double value, double by) { squares[lane] += by * (value - mean) * (value - mean); });
  const std::array<double, kMoments> moments = {number, all, mean, total(squares), least, greatest};
  std::copy(moments.begin(), moments.end(), out);
}

}  // namespace

at::Tensor no_moments(int64_t channels) {
  at::Tensor moments = at::zeros({channels, kMoments}, at::kDouble);
  moments.select(1, 4).fill_(std::numeric_limits<double>::infinity());
  moments.select(1, 5).fill_(-std::numeric_limits<double>::infinity());
  return moments;
}

at::Tensor frame_moments(const at::Tensor& frame, const at::Tensor& weights) {
  const int64_t channels = frame.size(0), count = channels > 0 ? frame.numel() / channels : 0;
  TORCH_CHECK_VALUE(!weights.defined() || weights.numel() == count, "moments: ", weights.numel(), " weights for ", count, " places");
  at::Tensor moments = no_moments(channels);
  const double* by = weights.defined() ? weights.const_data_ptr<double>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES(frame.scalar_type(), "frame_moments", [&] {
    for (int64_t channel = 0; channel < channels; ++channel) {
      channel_moments(frame.const_data_ptr<scalar_t>() + channel * count, by, count,
                      moments.mutable_data_ptr<double>() + channel * kMoments);
    }
  });
  return moments;
}

void merge_moments(const at::Tensor& moments, const at::Tensor& more) {
  auto a = moments.accessor<double, 2>();
  const auto b = more.accessor<double, 2>();
  for (int64_t channel = 0; channel < a.size(0); ++channel) {
    const double weight = a[channel][1] + b[channel][1];
    if (weight > 0) {
      const double apart = b[channel][2] - a[channel][2], share = b[channel][1] / weight;
      a[channel][3] += b[channel][3] + apart * apart * a[channel][1] * share;
      a[channel][2] += apart * share;
    }
    a[channel][0] += b[channel][0];
    a[channel][1] = weight;
    a[channel][4] = std::min(a[channel][4], b[channel][4]);
    a[channel][5] = std::max(a[channel][5], b[channel][5]);
  }
}

}  // namespace moonhalo::io
