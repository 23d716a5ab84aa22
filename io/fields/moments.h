// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace moonhalo::io {

/// Moments of the channels of frames: float64 [channels, kMoments], as count of values, sum of weights, mean, sum
/// of squared deviations from it, least and greatest. NaN is not a value. All sums have a fixed order, so the same
/// frames merged in the same order give the same bits on any number of ranks and threads.
constexpr int64_t kMoments = 6;

/// The moments of one frame [channels, space...], float32 or float64, contiguous. `weights`: float64, one a place of
/// space, or undefined for 1 each.
at::Tensor frame_moments(const at::Tensor& frame, const at::Tensor& weights);
/// Adds `more` to `moments` (T. Chan, G. Golub and R. LeVeque, "Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979).
void merge_moments(const at::Tensor& moments, const at::Tensor& more);
/// The moments of no frames.
at::Tensor no_moments(int64_t channels);

}  // namespace moonhalo::io
