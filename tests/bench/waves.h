// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

#include "tests/bench/taking_turns.h"

// Shared by benchmarks of files: a field that compresses as data do, and wall and processor times side by side.
namespace moonhalo::bench {

/// Smooth waves and a little noise; 3-D.
inline at::Tensor waves(at::IntArrayRef shape) {
  at::Tensor field = at::zeros(shape, at::kFloat);
  for (int wave = 1; wave <= 4; ++wave) {
    at::Tensor term = at::ones({1, 1, 1}, at::kFloat);
    for (int64_t dim = 0; dim < 3; ++dim) {
      std::vector<int64_t> along(3, 1);
      along[static_cast<size_t>(dim)] = shape[dim];
      const double step = 2 * M_PI * wave * static_cast<double>(1 + dim % 3) / static_cast<double>(shape[dim]);
      term = term * at::cos(at::arange(shape[dim], at::kFloat) * step + wave).view(along);
    }
    field += term / wave;
  }
  return field + at::rand(shape, at::kFloat) * 1e-3;
}

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  std::vector<double> wall, processor;
  template <typename Work>
  void take(const Work& work) {
    const double wall_began = seconds(), processor_began = processor_time();
    work();
    wall.push_back(seconds() - wall_began);
    processor.push_back((processor_time() - processor_began) / 1e3);
  }
};

inline void print_ratios(const char* what, const Times& baseline, const Times& ours, double target) {
  std::printf("%-44s %8.3f %8.3f %6.2f %8.3f %8.3f %6.2f %7.1f\n", what, median(baseline.wall), median(ours.wall),
              median(baseline.wall) / median(ours.wall), median(baseline.processor), median(ours.processor),
              median(baseline.processor) / median(ours.processor), target);
}

inline void print_heading() {
  std::printf("%-44s %8s %8s %6s %8s %8s %6s %7s\n", "against", "wall", "ours", "ratio", "CPU", "ours", "ratio",
              "target");
}

}  // namespace moonhalo::bench
