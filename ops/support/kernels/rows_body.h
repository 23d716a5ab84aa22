// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/support/kernels/rows.h"

// The kernels for vectors of kBytes. Everything has internal linkage: see rows.h.
namespace moonhalo::rows {
namespace {

// This number of values is read again while they are in the nearest cache.
constexpr int64_t kChunk = 2048;

template <typename T, int kBytes>
struct Lanes {
  static constexpr int64_t kWidth = kBytes / static_cast<int64_t>(sizeof(T));
  typedef T Vector __attribute__((vector_size(kBytes)));

  [[gnu::always_inline]] static inline Vector load(const T* from) {
    Vector v;
    __builtin_memcpy(&v, from, kBytes);
    return v;
  }
  [[gnu::always_inline]] static inline double total(const Vector& v) {
    double sum = 0;
    for (int64_t i = 0; i < kWidth; ++i) sum += static_cast<double>(v[i]);
    return sum;
  }
};

// Adds up what `vector(i)` and, for the rest, `single(i)` give for values i on.
template <typename T, int kBytes, typename OfVector, typename OfOne>
[[gnu::always_inline]] inline double sum_of(int64_t n, const OfVector& vector, const OfOne& single) {
  using L = Lanes<T, kBytes>;
  typename L::Vector a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * L::kWidth <= n; i += 4 * L::kWidth) {
    a += vector(i);
    b += vector(i + L::kWidth);
    c += vector(i + 2 * L::kWidth);
    d += vector(i + 3 * L::kWidth);
  }
  double sum = L::total((a + b) + (c + d));
  for (; i < n; ++i) sum += static_cast<double>(single(i));
  return sum;
}

// A chunk's deviations are taken from its own mean, so nothing cancels; chunks are joined as in T. Chan, G. Golub, R.
// LeVeque, Algorithms for computing the sample variance, 1983.
template <typename T, int kBytes>
void moments(const T* x, int64_t n, double& mean, double& m2) {
  using L = Lanes<T, kBytes>;
  mean = m2 = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const T* chunk = x + begin;
    const int64_t count = n - begin < kChunk ? n - begin : kChunk;
    const double own = sum_of<T, kBytes>(
                           count, [&](int64_t i) __attribute__((always_inline)) { return L::load(chunk + i); },
                           [&](int64_t i) { return chunk[i]; }) /
                       static_cast<double>(count);
    const T middle = static_cast<T>(own);
    m2 += sum_of<T, kBytes>(
        count,
        [&](int64_t i) __attribute__((always_inline)) {
          const typename L::Vector off = L::load(chunk + i) - middle;
          return off * off;
        },
        [&](int64_t i) { return (chunk[i] - middle) * (chunk[i] - middle); });
    const double apart = own - mean, all = static_cast<double>(begin + count), part = static_cast<double>(count) / all;
    m2 += apart * apart * part * static_cast<double>(begin);
    mean += apart * part;
  }
}

template <typename T, int kBytes>
void products(const T* g, const T* x, T mean, int64_t n, double& sum, double& product) {
  using L = Lanes<T, kBytes>;
  sum = product = 0;
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const T *gs = g + begin, *xs = x + begin;
    const int64_t count = n - begin < kChunk ? n - begin : kChunk;
    sum += sum_of<T, kBytes>(
        count, [&](int64_t i) __attribute__((always_inline)) { return L::load(gs + i); },
        [&](int64_t i) { return gs[i]; });
    product += sum_of<T, kBytes>(
        count, [&](int64_t i) __attribute__((always_inline)) { return L::load(gs + i) * (L::load(xs + i) - mean); },
        [&](int64_t i) { return gs[i] * (xs[i] - mean); });
  }
}

template <typename T>
void normalize(T* __restrict y, const T* __restrict x, T mean, T scale, T bias, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale + bias;
}

template <typename T>
void normalize_back(T* __restrict y, const T* __restrict g, const T* __restrict x, T mean, T scale, T slope, T shift,
                    int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = g[i] * scale + ((x[i] - mean) * slope + shift);
}

// Rows of one number.
template <typename T>
void resample_numbers(T* __restrict out, const T* __restrict x, const Taps<T>& taps) {
  if (taps.taps == 2) {
    for (int64_t o = 0; o < taps.outputs; ++o)
      out[o] = x[taps.rows[2 * o]] * taps.weights[2 * o] + x[taps.rows[2 * o + 1]] * taps.weights[2 * o + 1];
    return;
  }
  for (int64_t o = 0; o < taps.outputs; ++o) {
    const int64_t* rows = taps.rows + o * taps.taps;
    const T* weights = taps.weights + o * taps.taps;
    T sum = x[rows[0]] * weights[0];
    for (int64_t t = 1; t < taps.taps; ++t) sum += x[rows[t]] * weights[t];
    out[o] = sum;
  }
}

// Sums that several taps have in common are added up in registers.
template <typename T>
void resample(T* __restrict out, const T* __restrict x, const Taps<T>& taps, int64_t inner) {
  const int64_t* rows = taps.rows;
  const T* weights = taps.weights;
  if (inner == 1) return resample_numbers(out, x, taps);
  for (int64_t o = 0; o < taps.outputs; ++o, rows += taps.taps, weights += taps.taps) {
    T* to = out + o * inner;
    if (taps.taps == 1) {
      const T* from = x + rows[0] * inner;
      for (int64_t i = 0; i < inner; ++i) to[i] = from[i];
    } else if (taps.taps == 2) {
      const T *first = x + rows[0] * inner, *second = x + rows[1] * inner;
      const T a = weights[0], b = weights[1];
      for (int64_t i = 0; i < inner; ++i) to[i] = first[i] * a + second[i] * b;
    } else {
      for (int64_t i = 0; i < inner; ++i) {
        T sum = x[rows[0] * inner + i] * weights[0];
        for (int64_t t = 1; t < taps.taps; ++t) sum += x[rows[t] * inner + i] * weights[t];
        to[i] = sum;
      }
    }
  }
}

template <typename T>
void resample_back(T* __restrict x, const T* __restrict out, const Taps<T>& taps, int64_t inner) {
  const int64_t* rows = taps.rows;
  const T* weights = taps.weights;
  for (int64_t o = 0; o < taps.outputs; ++o, rows += taps.taps, weights += taps.taps) {
    const T* from = out + o * inner;
    for (int64_t t = 0; t < taps.taps; ++t) {
      T* to = x + rows[t] * inner;
      const T weight = weights[t];
      for (int64_t i = 0; i < inner; ++i) to[i] += from[i] * weight;
    }
  }
}

template <typename T, int kBytes>
constexpr Kernels<T> kernel_set() {
  return {moments<T, kBytes>, products<T, kBytes>, normalize<T>, normalize_back<T>, resample<T>, resample_back<T>};
}

}  // namespace
}  // namespace moonhalo::rows
