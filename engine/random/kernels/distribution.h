// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "moonhalo/engine/random/kernels/draws.h"

namespace moonhalo {

/// A distribution, sampled from uniform numbers. The same code runs on host and device.
struct Distribution {
  /// The distributions; kCoin: 1 with probability a, else 0.
  enum Kind : uint8_t { kUniform, kNormal, kLogNormal, kExponential, kCauchy, kGeometric, kCoin, kInteger };
  /// Selects what the numbers below mean.
  Kind kind;
  double a = 0,
         b = 0;        ///< uniform: begin and width; normal: mean and deviation; Cauchy: median and width; else a alone
  double last = 0;     ///< uniform: upper bound of the result
  int digits = 53;     ///< uniform: binary digits
  int64_t low = 0;     ///< integers: the lowest
  uint64_t range = 0;  ///< integers: their number; 0 stands for 2^64
};

/// Returns the next number of an integer distribution. Not collective.
template <typename Draws>
constexpr int64_t draw_integer(const Distribution& d, Draws& draws) {
  return static_cast<int64_t>(static_cast<uint64_t>(d.low) + draws.below(d.range));
}

/// Returns the next number of any other distribution. Not collective.
template <typename Draws>
constexpr double draw(const Distribution& d, Draws& draws) {
  switch (d.kind) {
    case Distribution::kUniform: {
      const double number = d.a + d.b * draws.uniform(d.digits);
      return number < d.last ? number : d.last;
    }
    case Distribution::kNormal:
      return d.a + d.b * standard_normal(draws);
    case Distribution::kLogNormal:
      return std::exp(d.a + d.b * standard_normal(draws));
    case Distribution::kExponential:
      return -std::log(draws.uniform_above_zero()) / d.a;
    case Distribution::kCauchy:
      return d.a + d.b * std::tan(std::numbers::pi * (draws.uniform() - 0.5));
    case Distribution::kGeometric: {
      const double number = std::ceil(std::log(draws.uniform_above_zero()) * d.a);
      return number > 1 ? number : 1;
    }
    case Distribution::kCoin:
      return draws.uniform() < d.a ? 1 : 0;
    case Distribution::kInteger:
      break;
  }
  return 0;
}

}  // namespace moonhalo
