// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/moments.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace moonhalo::io {
namespace {

constexpr int64_t kBlock = 2048;  // values that stay in a core's first cache for the second pass
constexpr int64_t kLanes = 8;  // sums go in as many parts, which are added in the end: in one order, and side by side

struct Moments {
  double count = 0, weight = 0, mean = 0, squares = 0;
  double least = std::numeric_limits<double>::infinity(), greatest = -std::numeric_limits<double>::infinity();

  void add(const Moments& more) {
    const double all = weight + more.weight;
    if (all > 0) {
      const double apart = more.mean - mean, share = more.weight / all;
      squares += more.squares + apart * apart * weight * share;
      mean += apart * share;
    }
    count += more.count;
    weight = all;
    least = std::min(least, more.least);
    greatest = std::max(greatest, more.greatest);
  }
};

using Lanes = std::array<double, kLanes>;

double total(const Lanes& lanes) {
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// Calls fn(lane, i) for 0 <= i < count, in an order that compilers make vector instructions of.
template <typename Fn>
[[gnu::always_inline]] inline void in_lanes(int64_t count, const Fn& fn) {
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) fn(static_cast<size_t>(lane), i + lane);
  }
}

/// The moments of a block without NaN; with one, the mean is NaN. `count` is a multiple of kLanes.
template <bool kWeighted, typename T>
Moments dense_moments(const T* values, const double* weights, int64_t count) {
  Lanes sum{}, weight{}, squares{};
  std::array<T, kLanes> least, greatest;
  std::copy_n(values, kLanes, least.begin());
  std::copy_n(values, kLanes, greatest.begin());
  in_lanes(count, [&](size_t lane, int64_t i) {
    const T value = values[i];
    least[lane] = value < least[lane] ? value : least[lane];
    greatest[lane] = value > greatest[lane] ? value : greatest[lane];
    if constexpr (kWeighted) {
      weight[lane] += weights[i];
      sum[lane] += weights[i] * static_cast<double>(value);
    } else {
      sum[lane] += static_cast<double>(value);
    }
  });
  Moments moments{.count = static_cast<double>(count)};
  moments.weight = kWeighted ? total(weight) : moments.count;
  moments.mean = total(sum) / moments.weight;
  const double mean = moments.mean;
  in_lanes(count, [&](size_t lane, int64_t i) {
    const double apart = static_cast<double>(values[i]) - mean;
    squares[lane] += kWeighted ? weights[i] * apart * apart : apart * apart;
  });
  moments.squares = total(squares);
  moments.least = static_cast<double>(*std::min_element(least.begin(), least.end()));
  moments.greatest = static_cast<double>(*std::max_element(greatest.begin(), greatest.end()));
  return moments;
}

/// The moments of the values that are there.
template <typename T>
Moments sparse_moments(const T* values, const double* weights, int64_t count) {
  Moments moments;
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(values[i]);
    if (!std::isnan(value)) moments.add({1, weights != nullptr ? weights[i] : 1, value, 0, value, value});
  }
  return moments;
}

template <typename T>
Moments channel_moments(const T* values, const double* weights, int64_t count) {
  Moments moments;
  const auto add = [&](int64_t begin, int64_t size, bool dense) {
    const T* from = values + begin;
    const double* by = weights != nullptr ? weights + begin : nullptr;
    if (dense) {
      const Moments block = by != nullptr ? dense_moments<true>(from, by, size) : dense_moments<false>(from, by, size);
      if (!std::isnan(block.mean)) return moments.add(block);
    }
    moments.add(sparse_moments(from, by, size));
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin), whole = size / kLanes * kLanes;
    if (whole > 0) add(begin, whole, true);
    if (size > whole) add(begin + whole, size - whole, false);
  }
  return moments;
}

void store(const Moments& moments, at::TensorAccessor<double, 1> out) {
  const std::array<double, kMoments> all = {moments.count,   moments.weight, moments.mean,
                                            moments.squares, moments.least,  moments.greatest};
  for (size_t i = 0; i < all.size(); ++i) out[static_cast<int64_t>(i)] = all[i];
}

Moments stored(const at::TensorAccessor<double, 1>& from) {
  return {from[0], from[1], from[2], from[3], from[4], from[5]};
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
  TORCH_CHECK_VALUE(!weights.defined() || weights.numel() == count, "moments: ", weights.numel(), " weights for ",
                    count, " places");
  at::Tensor moments = no_moments(channels);
  const double* by = weights.defined() ? weights.const_data_ptr<double>() : nullptr;
  auto out = moments.accessor<double, 2>();
  AT_DISPATCH_FLOATING_TYPES(frame.scalar_type(), "frame_moments", [&] {
    for (int64_t channel = 0; channel < channels; ++channel) {
      store(channel_moments(frame.const_data_ptr<scalar_t>() + channel * count, by, count), out[channel]);
    }
  });
  return moments;
}

void merge_moments(const at::Tensor& moments, const at::Tensor& more) {
  auto a = moments.accessor<double, 2>();
  const auto b = more.accessor<double, 2>();
  for (int64_t channel = 0; channel < a.size(0); ++channel) {
    Moments both = stored(a[channel]);
    both.add(stored(b[channel]));
    store(both, a[channel]);
  }
}

}  // namespace moonhalo::io
