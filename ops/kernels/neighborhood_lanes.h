// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

// Vectors of kBytes, what is done with their lanes, and element types. Everything has internal linkage: see neighborhood.h.
namespace moonhalo::neighborhood {
namespace {

struct BFloat16 {
  uint16_t bits;
};

template <typename A>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Int = int32_t;
  static constexpr int kMantissa = 23, kBias = 127, kDegree = 7;
  static constexpr float kLowest = -87.0f, kMagic = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
};
template <>
struct ExpConstants<double> {
  using Int = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kDegree = 13;
  static constexpr double kLowest = -708.0, kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 6.93147180369123816490e-01,
                          kLn2Low = 1.90821492927058770002e-10;
};

template <typename A, int kBytes>
struct Lanes {
  static constexpr int kWidth = kBytes / static_cast<int>(sizeof(A));
  using Int = typename ExpConstants<A>::Int;
  typedef A Vector __attribute__((vector_size(kBytes)));
  typedef Int Mask __attribute__((vector_size(kBytes)));

  [[gnu::always_inline]] static inline Vector load(const A* from) {
    Vector v;
    __builtin_memcpy(&v, from, kBytes);
    return v;
  }
  [[gnu::always_inline]] static inline Vector load(const BFloat16* from) {
    Mask bits;
    for (int i = 0; i < kWidth; ++i)
      bits[i] = static_cast<int32_t>(static_cast<uint32_t>(from[i].bits) << 16);
    return reinterpret_cast<Vector>(bits);
  }
  [[gnu::always_inline]] static inline void store(A* to, Vector v) {
    __builtin_memcpy(to, &v, kBytes);
  }
  [[gnu::always_inline]] static inline Vector all(A value) { return value - Vector{}; }

  [[gnu::always_inline]] static inline A largest(Vector v) {
    A result = v[0];
    for (int i = 1; i < kWidth; ++i) result = v[i] > result ? v[i] : result;
    return result;
  }
  [[gnu::always_inline]] static inline A sum(Vector v) {
    A result = v[0];
    for (int i = 1; i < kWidth; ++i) result += v[i];
    return result;
  }

  /// e^x for x <= 0 to a few units in the last place: x = n ln 2 + r, Taylor's series of e^r. Zero below the smallest
  /// normal number; NaN stays.
  [[gnu::always_inline]] static inline Vector exp(Vector x) {
    using C = ExpConstants<A>;
    const Vector lowest = all(C::kLowest);
    const Mask vanishes = x <= lowest;
    x = vanishes ? lowest : x;
    const Vector shifted = x * static_cast<A>(1.44269504088896340736) + C::kMagic;
    const Vector n = shifted - C::kMagic;
    const Vector r = (x - n * C::kLn2High) - n * C::kLn2Low;
    Vector series = all(inverse_factorial(C::kDegree));
#pragma GCC unroll 16
    for (int k = C::kDegree - 1; k >= 0; --k) series = series * r + inverse_factorial(k);
    const Mask power = (reinterpret_cast<Mask>(shifted) + C::kBias) << C::kMantissa;
    return vanishes ? Vector{} : series * reinterpret_cast<Vector>(power);
  }
  static constexpr A inverse_factorial(int k) {
    double product = 1;
    for (int i = 2; i <= k; ++i) product *= i;
    return static_cast<A>(1 / product);
  }

  /// Rows become columns.
  [[gnu::always_inline]] static inline void transpose(Vector (&rows)[kWidth]) {
#pragma GCC unroll 8
    for (int step = 1; step < kWidth; step *= 2) {
      Vector next[kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < kWidth / 2; ++i) {
        next[2 * i] =
            interleave<0>(rows[i], rows[i + kWidth / 2], std::make_integer_sequence<int, kWidth>{});
        next[2 * i + 1] = interleave<kWidth / 2>(rows[i], rows[i + kWidth / 2],
                                                 std::make_integer_sequence<int, kWidth>{});
      }
#pragma GCC unroll 16
      for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
    }
  }
  template <int kFirst, int... i>
  [[gnu::always_inline]] static inline Vector interleave(Vector a, Vector b,
                                                         std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (kFirst + i / 2 + (i % 2 ? kWidth : 0))...);
  }
};

template <typename A>
[[gnu::always_inline]] inline A read(A value) {
  return value;
}
[[gnu::always_inline]] inline float read(BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  __builtin_memcpy(&result, &bits, sizeof result);
  return result;
}

template <typename A>
[[gnu::always_inline]] inline void write(A& to, A value) {
  to = value;
}
/// To the nearest, ties to even.
[[gnu::always_inline]] inline void write(BFloat16& to, float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  to.bits = static_cast<uint16_t>(value != value ? 0x7fc0 : rounded);
}

}  // namespace
}  // namespace moonhalo::neighborhood
