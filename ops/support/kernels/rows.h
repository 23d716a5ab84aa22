// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The work of norms and resampling on rows of adjacent numbers, reading each as seldom as can be: plain memory in,
/// plain memory out, on one thread. Compiled once per instruction set, so nothing here may leave code behind that the
/// linker could share.
namespace moonhalo::rows {

/// Says which rows an output row reads: `taps` numbers and weights for each of `outputs`, one after the other.
template <typename T>
struct Taps {
  const int64_t* rows = nullptr;
  const T* weights = nullptr;
  int64_t outputs = 0, taps = 1;
};

template <typename T>
struct Kernels {
  /// Mean of `n` values, and the sum of their squared deviations from it. Nothing for n = 0.
  void (*moments)(const T* x, int64_t n, double& mean, double& m2);
  /// Sums of g and of g * (x - mean).
  void (*products)(const T* g, const T* x, T mean, int64_t n, double& sum, double& product);
  /// y = (x - mean) * scale + bias
  void (*normalize)(T* y, const T* x, T mean, T scale, T bias, int64_t n);
  /// y = g * scale + (x - mean) * slope + shift
  void (*normalize_back)(T* y, const T* g, const T* x, T mean, T scale, T slope, T shift, int64_t n);
  /// out [outputs, inner]: the weighted sums of rows of x [*, inner]; and its adjoint, added to x.
  void (*resample)(T* out, const T* x, const Taps<T>& taps, int64_t inner);
  void (*resample_back)(T* x, const T* out, const Taps<T>& taps, int64_t inner);
};

/// The kernels for this processor; LibTorch's own choice (ATEN_CPU_CAPABILITY).
template <typename T>
const Kernels<T>& kernels();

}  // namespace moonhalo::rows
