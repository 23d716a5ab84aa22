// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/kernels.h"
#include "moonhalo/ops/neighborhood/kernels/lanes.h"

// The keys and values that a slab of queries needs, packed; and the three small matrix products over them. See
// kernels.h for why everything has internal linkage.
namespace moonhalo::neighborhood {
namespace {

/// Two queries, neighbours along the last dim, are worked on together: their windows are nearly the same.
constexpr int kPair = 2;
/// Vectors of scores in flight: longer windows are taken in chunks, so scores never leave the first cache.
constexpr int64_t kChunk = 128;
/// From a query's scores to the next query's, in vectors: not a multiple of 4 KiB, which would make loads wait for
/// stores.
constexpr int64_t kScoreStride = kChunk + 1;
/// Rows of keys that are asked for before they are packed. Queries are asked for a pair ahead: the keys of more pairs
/// would push them out of the first cache.
constexpr int64_t kAhead = 8;
constexpr int kFeatures = 4;  ///< vectors of features in one product with values

/// A vector of keys that a pair of queries, or one, sees together. Windows of neighbours overlap and the later one does
/// not begin before the other: keys before `both` are the first query's alone, those from `last` on the second's.
struct SeenKeys {
  int32_t count, both, last;
};

template <typename T, typename A, int kBytes>
struct Block {
  using L = Lanes<A, kBytes>;
  using Vector = typename L::Vector;
  static constexpr int kWidth = L::kWidth;

  static int64_t padded(int64_t features) { return (features + kWidth - 1) / kWidth * kWidth; }
  /// A row of `keys` keys (or values), `step` apart: [keys, padded features], zeros behind the last feature.
  static void pack(const T* row, int64_t keys, int64_t step, int64_t features, A* to) {
    for (int64_t key = 0; key < keys; ++key, to += padded(features)) {
      prefetch(row + (key + kAhead) * step, features);
      read_row(row + key * step, features, A{1}, to);
    }
  }

  /// Rows of one head are far apart, where the processor does not look ahead by itself.
  [[gnu::always_inline]] static inline void prefetch(const T* row, int64_t features) {
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t c = 0; c < features; c += kLine) __builtin_prefetch(row + c);
  }

  /// features of one row, times `factor`, padded with zeros.
  [[gnu::always_inline]] static inline void read_row(const T* from, int64_t features, A factor, A* to) {
    int64_t c = 0;
    for (; c + kWidth <= features; c += kWidth) L::store(to + c, L::load(from + c) * factor);
    for (; c < features; ++c) to[c] = read(from[c]) * factor;
    for (; c < padded(features); ++c) to[c] = 0;
  }
  static void write_row(T* to, int64_t features, A factor, const A* from) {
    for (int64_t c = 0; c < features; ++c) write(to[c], static_cast<A>(from[c] * factor));
  }

  /// scores[q] lane k = sum over c of queries[q][c] * row k [c], for kWidth rows of which `keys` matter. Products
  /// stay in lanes of features until the end: keys are as they do for the products with values, and share the
  /// cache with them. `kFixed` is the number of vectors in a row if it is known, else 0.
  template <int kQueries, int kFixed>
  [[gnu::always_inline]] static inline void scores_of(const A* const* queries, const A* row, int64_t keys,
                                                      int64_t features, Vector* scores) {
    const int64_t width = kFixed > 0 ? kFixed * kWidth : features;
    constexpr int kRows = kWidth < 4 ? kWidth : 4, kParts = kWidth / L::kPart;
    Vector sums[kQueries][kParts] = {};
#pragma GCC unroll 2
    for (int first = 0; first < kWidth; first += kRows) {
      if (first >= keys) break;
      Vector part[kQueries][kRows] = {};
      const A* rows = row + first * width;
#pragma GCC unroll 4
      for (int64_t c = 0; c < width; c += kWidth) {
        Vector q[kQueries];
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) q[i] = L::load(queries[i] + c);
#pragma GCC unroll 4
        for (int k = 0; k < kRows; ++k) {
          Vector v = L::load(rows + k * width + c);
          L::hold(v);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i) part[i][k] += q[i] * v;
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
#pragma GCC unroll 4
        for (int k = 0; k < kRows; k += L::kPart) sums[i][(first + k) / L::kPart] = L::sums_in_parts(part[i] + k);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kQueries; ++i) scores[i] = L::join_parts(sums[i]);
  }

  template <int kQueries, int kFixed>
  static void scores_in(const A* const* queries, const A* const* rows, const SeenKeys* keys, int64_t count,
                        int64_t width, A* out) {
    for (int64_t j = 0; j < count; ++j) {
      Vector of_row[kQueries];
      scores_of<kQueries, kFixed>(queries, rows[j], keys[j].count, width, of_row);
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) L::store(out + (i * kScoreStride + j) * kWidth, of_row[i]);
    }
  }
  template <int kQueries>
  static void scores(const A* const* queries, const A* const* rows, const SeenKeys* keys, int64_t count, int64_t width,
                     A* out) {
    if (width == kFeatures * kWidth) return scores_in<kQueries, kFeatures>(queries, rows, keys, count, width, out);
    scores_in<kQueries, 0>(queries, rows, keys, count, width, out);
  }

  /// Calls give(Queries<first, end>{}, key) for each key of a vector, with the queries that see it. The others are left
  /// out of products, though their weight is zero: times NaN or infinity it would be NaN.
  template <int kBegin, int kEnd>
  struct Queries {
    static constexpr int kFirst = kBegin, kLast = kEnd;
  };
  template <int kQueries, typename Give>
  [[gnu::always_inline]] static inline void for_seen(const SeenKeys& keys, const Give& give) {
    int32_t k = 0;
    if constexpr (kQueries > 1)
      for (; k < keys.both; ++k) give(Queries<0, 1>{}, k);
    for (; k < keys.last; ++k) give(Queries<0, kQueries>{}, k);
    if constexpr (kQueries > 1)
      for (; k < keys.count; ++k) give(Queries<1, kQueries>{}, k);
  }

  /// sums[q][features] += sum over the keys that q sees of weights[q][key] * rows[key][features]; `rows[j]` is the
  /// first row of `keys[j]`.
  template <int kQueries, int kVectors>
  static inline void gather_of(const A* weights, const A* const* rows, const SeenKeys* keys, int64_t count,
                               int64_t width, int64_t offset, A* const* sums) {
    Vector total[kQueries][kVectors];
    for (int i = 0; i < kQueries; ++i)
      for (int f = 0; f < kVectors; ++f) total[i][f] = L::load(sums[i] + offset + f * kWidth);
    for (int64_t j = 0; j < count; ++j) {
      const A* row = rows[j] + offset;
      const A* weight = weights + j * kWidth;
      const auto add = [&](auto queries, int32_t k) __attribute__((always_inline)) {
        Vector w[kQueries];
#pragma GCC unroll 4
        for (int i = queries.kFirst; i < queries.kLast; ++i) w[i] = L::all(weight[i * kScoreStride * kWidth + k]);
#pragma GCC unroll 4
        for (int f = 0; f < kVectors; ++f) {
          Vector v = L::load(row + f * kWidth);
          L::hold(v);
#pragma GCC unroll 4
          for (int i = queries.kFirst; i < queries.kLast; ++i) total[i][f] += w[i] * v;
        }
        row += width;
      };
      for_seen<kQueries>(keys[j], add);
    }
    for (int i = 0; i < kQueries; ++i)
      for (int f = 0; f < kVectors; ++f) L::store(sums[i] + offset + f * kWidth, total[i][f]);
  }

  template <int kQueries>
  static void gather(const A* weights, const A* const* rows, const SeenKeys* keys, int64_t count, int64_t width,
                     A* const* sums) {
    int64_t offset = 0;
    for (; offset + kFeatures * kWidth <= width; offset += kFeatures * kWidth)
      gather_of<kQueries, kFeatures>(weights, rows, keys, count, width, offset, sums);
    for (; offset < width; offset += kWidth) gather_of<kQueries, 1>(weights, rows, keys, count, width, offset, sums);
  }

  /// rows[key][features] += sum over the q that see the key of weights[q][key] * vectors[q][features].
  template <int kQueries, int kVectors>
  static inline void scatter_of(const A* weights, A* const* rows, const SeenKeys* keys, int64_t count, int64_t width,
                                int64_t offset, const A* const* vectors) {
    Vector v[kQueries][kVectors];
    for (int i = 0; i < kQueries; ++i)
      for (int f = 0; f < kVectors; ++f) v[i][f] = L::load(vectors[i] + offset + f * kWidth);
    for (int64_t j = 0; j < count; ++j) {
      A* row = rows[j] + offset;
      const A* weight = weights + j * kWidth;
      const auto add = [&](auto queries, int32_t k) __attribute__((always_inline)) {
        Vector w[kQueries];
#pragma GCC unroll 4
        for (int i = queries.kFirst; i < queries.kLast; ++i) w[i] = L::all(weight[i * kScoreStride * kWidth + k]);
#pragma GCC unroll 4
        for (int f = 0; f < kVectors; ++f) {
          Vector sum = L::load(row + f * kWidth);
#pragma GCC unroll 4
          for (int i = queries.kFirst; i < queries.kLast; ++i) sum += w[i] * v[i][f];
          L::store(row + f * kWidth, sum);
        }
        row += width;
      };
      for_seen<kQueries>(keys[j], add);
    }
  }

  template <int kQueries>
  static void scatter(const A* weights, A* const* rows, const SeenKeys* keys, int64_t count, int64_t width,
                      const A* const* vectors) {
    int64_t offset = 0;
    for (; offset + kFeatures * kWidth <= width; offset += kFeatures * kWidth)
      scatter_of<kQueries, kFeatures>(weights, rows, keys, count, width, offset, vectors);
    for (; offset < width; offset += kWidth)
      scatter_of<kQueries, 1>(weights, rows, keys, count, width, offset, vectors);
  }
};

}  // namespace
}  // namespace moonhalo::neighborhood
