// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

// Vectors of kBytes, what is done with their lanes, and element types. Everything has internal linkage: see
// kernels.h.
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
  static constexpr int kMantissa = 23, kBias = 127, kDegree = 6, kLogTerms = 6;
  static constexpr float kLowest = -88.0f, kMagic = 12582912.0f;  // 1.5 * 2^23
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
};
template <>
struct ExpConstants<double> {
  using Int = int64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kDegree = 13, kLogTerms = 12;
  static constexpr double kLowest = -709.0, kMagic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
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
    for (int i = 0; i < kWidth; ++i) bits[i] = static_cast<int32_t>(static_cast<uint32_t>(from[i].bits) << 16);
    return reinterpret_cast<Vector>(bits);
  }
  [[gnu::always_inline]] static inline void store(A* to, Vector v) { __builtin_memcpy(to, &v, kBytes); }
  /// To the nearest, ties to even.
  [[gnu::always_inline]] static inline void store(BFloat16* to, Vector v) {
    const Mask bits = reinterpret_cast<Mask>(v), rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Mask kept = v == v ? rounded : Mask{} + 0x7fc0;
    for (int i = 0; i < kWidth; ++i) to[i].bits = static_cast<uint16_t>(kept[i]);
  }
  [[gnu::always_inline]] static inline Vector all(A value) { return value - Vector{}; }

  /// Holds a vector that is used several times in a register, where GCC would load it for each use. Vectors of 32 bytes
  /// are x86's alone.
  [[gnu::always_inline]] static inline void hold(Vector& v) {
    if constexpr (kBytes == 32) asm("" : "+x"(v));
  }

  /// Lanes moved down by `kBy`, the rest unspecified.
  template <int kBy, int... i>
  [[gnu::always_inline]] static inline Vector down(Vector v, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(v, v, ((i + kBy) % kWidth)...);
  }
  template <typename Combine>
  [[gnu::always_inline]] static inline A reduce(Vector v, const Combine& combine) {
    constexpr std::make_integer_sequence<int, kWidth> kAll;
    if constexpr (kWidth > 4) v = combine(v, down<kWidth / 2>(v, kAll));
    if constexpr (kWidth > 2) v = combine(v, down<2>(v, kAll));
    return combine(v, down<1>(v, kAll))[0];
  }
  [[gnu::always_inline]] static inline A largest(Vector v) {
    return reduce(v, [](Vector a, Vector b) { return a > b ? a : b; });
  }
  [[gnu::always_inline]] static inline A sum(Vector v) {
    return reduce(v, [](Vector a, Vector b) { return a + b; });
  }

  /// Natural logarithm of positive normal numbers, to a few units in the last place: x = 2^n m with m near 1, and
  /// log m = 2 artanh((m - 1) / (m + 1)), its series. NaN and infinity stay.
  [[gnu::always_inline]] static inline Vector log(Vector x) {
    using C = ExpConstants<A>;
    const Mask bits = reinterpret_cast<Mask>(x);
    Mask n = (bits >> C::kMantissa) - C::kBias;
    Vector m = reinterpret_cast<Vector>(bits - (n << C::kMantissa));
    const Mask large = m > all(static_cast<A>(1.41421356237309504880));
    m = large ? m * static_cast<A>(0.5) : m;
    n -= large;  // lanes of `large` are -1 where it holds
    const Vector exponent = __builtin_convertvector(n, Vector), s = (m - 1) / (m + 1), square = s * s;
    Vector series{};
#pragma GCC unroll 16
    for (int k = C::kLogTerms; k > 0; --k) series = series * square + A{2} / static_cast<A>(2 * k - 1);
    const Vector result = exponent * C::kLn2High + (series * s + exponent * C::kLn2Low);
    return x < all(__builtin_huge_val()) ? result : x;
  }

  /// e^x, x far from overflow (the kernels ask for at most 8), to a few units in the last place: x = n ln 2 + r,
  /// Taylor's series of e^r. Zero where 2^n is below the smallest normal number; NaN stays.
  [[gnu::always_inline]] static inline Vector exp(Vector x) {
    using C = ExpConstants<A>;
    // The lowest bits of `shifted` are n with the exponent's bias: for x = kLowest they are 0, and the power of 2 is
    // too.
    constexpr A kMagic = C::kMagic + C::kBias;
    const Vector lowest = all(C::kLowest);
    x = lowest > x ? lowest : x;
    const Vector shifted = x * static_cast<A>(1.44269504088896340736) + kMagic;
    const Vector n = shifted - kMagic;
    const Vector r = (x - n * C::kLn2High) - n * C::kLn2Low;
    Vector series = all(inverse_factorial(C::kDegree));
#pragma GCC unroll 16
    for (int k = C::kDegree - 1; k >= 0; --k) series = series * r + inverse_factorial(k);
    return series * reinterpret_cast<Vector>(reinterpret_cast<Mask>(shifted) << C::kMantissa);
  }
  static constexpr A inverse_factorial(int k) {
    double product = 1;
    for (int i = 2; i <= k; ++i) product *= i;
    return static_cast<A>(1 / product);
  }

  /// Lane k of rows[i] becomes lane i of rows[k], of kWidth rows.
  [[gnu::always_inline]] static inline void transpose(Vector* rows) {
    constexpr std::make_integer_sequence<int, kWidth> kAll;
    if constexpr (kWidth > 4) exchange<4>(rows, kAll);
    if constexpr (kWidth > 2) exchange<2>(rows, kAll);
    exchange<1>(rows, kAll);
  }
  // Exchanges the blocks of kBy lanes that are off the diagonal.
  template <int kBy, int... i>
  [[gnu::always_inline]] static inline void exchange(Vector* rows, std::integer_sequence<int, i...>) {
#pragma GCC unroll 8
    for (int r = 0; r < kWidth; ++r) {
      if ((r & kBy) != 0) continue;
      const Vector a = rows[r], b = rows[r + kBy];
      rows[r] = __builtin_shufflevector(a, b, ((i & kBy) != 0 ? kWidth + i - kBy : i)...);
      rows[r + kBy] = __builtin_shufflevector(a, b, ((i & kBy) != 0 ? kWidth + i : i + kBy)...);
    }
  }

  /// Elements of 16 bytes, between which shuffles cost nothing extra.
  static constexpr int kPart = 16 / static_cast<int>(sizeof(A));

  /// Lane k of part p of the result is the sum of the lanes in part p of rows[k]; there are kPart rows.
  [[gnu::always_inline]] static inline Vector sums_in_parts(Vector* rows) {
    constexpr std::make_integer_sequence<int, kWidth> kAll;
    if constexpr (kPart == 4) {
      const Vector a = alternate<0>(rows[0], rows[1], kAll) + alternate<1>(rows[0], rows[1], kAll);
      const Vector b = alternate<0>(rows[2], rows[3], kAll) + alternate<1>(rows[2], rows[3], kAll);
      return alternate<0>(a, b, kAll) + alternate<1>(a, b, kAll);
    } else {
      return alternate<0>(rows[0], rows[1], kAll) + alternate<1>(rows[0], rows[1], kAll);
    }
  }
  /// The sums of all kWidth rows in order, from those in parts.
  [[gnu::always_inline]] static inline Vector join_parts(const Vector* sums) {
    static_assert(kWidth <= 2 * kPart);
    if constexpr (kWidth == kPart) {
      return sums[0];
    } else {
      constexpr std::make_integer_sequence<int, kWidth> kAll;
      return halves<0>(sums[0], sums[1], kAll) + halves<1>(sums[0], sums[1], kAll);
    }
  }
  // In every part: the even (odd) elements of a, then those of b.
  template <int kOdd, int... i>
  [[gnu::always_inline]] static inline Vector alternate(Vector a, Vector b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(
        a, b, (i / kPart * kPart + i % kPart * 2 % kPart + kOdd + (i % kPart >= kPart / 2 ? kWidth : 0))...);
  }
  // The lower (upper) half of a, then that of b.
  template <int kUpper, int... i>
  [[gnu::always_inline]] static inline Vector halves(Vector a, Vector b, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(a, b, (i % (kWidth / 2) + kUpper * kWidth / 2 + (i >= kWidth / 2 ? kWidth : 0))...);
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
