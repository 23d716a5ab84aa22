// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ops/kernels/neighborhood.h"
#include "ops/kernels/neighborhood_lanes.h"

// What a slab of queries needs of keys and values, packed; and the three small matrix products over them. See neighborhood.h
// for why everything has internal linkage.
namespace moonhalo::neighborhood {
namespace {

/// Two queries, neighbours along the last dim, are worked on together: their windows are nearly the same.
constexpr int kPair = 2;
/// Vectors of scores in flight: longer windows are taken in chunks, so scores never leave the first cache.
constexpr int64_t kChunk = 128;
constexpr int kColumns =
    6;  ///< vectors of keys in one product of scores: 2 x 6 sums, 2 queries, a vector of keys
constexpr int kFeatures = 4;  ///< vectors of features in one product with values

/// A group's part of one axis.
struct Group {
  int64_t index = 0, length = 0;
  int64_t first_query = 0, queries = 0;  ///< of the slab
  int64_t first_key = 0, keys = 0;       ///< that the slab needs
  int64_t held_key = 0;                  ///< first key of the group in the block
};

inline Group group_of(const Axis& axis, int64_t index) {
  Group g{.index = index, .length = rows_before(axis, index, axis.extent)};
  g.first_query = rows_before(axis, index, axis.query_begin);
  g.queries = rows_before(axis, index, axis.query_begin + axis.queries) - g.first_query;
  g.held_key = rows_before(axis, index, axis.key_begin);
  return g;
}

inline void find_keys(const Axis& axis, Group& g) {
  if (g.queries <= 0) return;
  g.first_key = window_of(axis, g.length, g.first_query).begin;
  g.keys = window_of(axis, g.length, g.first_query + g.queries - 1).end - g.first_key;
}

/// Where a row of a group lies in the tensor.
inline int64_t place(const Axis& axis, const Group& g, int64_t number, int64_t block_begin) {
  return number * axis.dilation + g.index - block_begin;
}

/// Most keys of one axis that a slab needs.
inline int64_t most_keys(const Problem& p, int axis) {
  const Axis& a = p.axes[axis];
  const int64_t held = group_rows(a, a.keys);
  if (axis != p.slab_axis) return held;
  const int64_t needed = p.slab_queries + a.window + a.stride;
  return needed < held ? needed : held;
}

template <typename T, typename A, int kBytes>
struct Block {
  using L = Lanes<A, kBytes>;
  using Vector = typename L::Vector;
  static constexpr int kWidth = L::kWidth;

  static int64_t padded(int64_t features) { return (features + kWidth - 1) / kWidth * kWidth; }
  /// Room for whole vectors behind the last key; an odd number of vectors, so that features do not share cache sets.
  static int64_t key_stride(int64_t keys) {
    return (((keys + kWidth - 1) / kWidth + 1) | 1) * kWidth;
  }

  /// Keys (or values) of the slab with the features outermost in a row of keys: [rows, features, key_stride].
  static void pack_transposed(const Problem& p, const Strided& from, int64_t features,
                              const Group (&groups)[3], int64_t batch, int64_t head, A* to) {
    const int64_t stride = key_stride(groups[2].keys), step = p.axes[2].dilation * from.dims[2];
    for_each_row(p, from, groups, batch, head, [&](const T* row, int64_t index) {
      A* out = to + index * features * stride;
      int64_t key = 0;
      for (; key + kWidth <= groups[2].keys; key += kWidth) {
        int64_t c = 0;
        for (; c + kWidth <= features; c += kWidth) {
          Vector block[kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) block[i] = L::load(row + (key + i) * step + c);
          L::transpose(block);
#pragma GCC unroll 16
          for (int i = 0; i < kWidth; ++i) L::store(out + (c + i) * stride + key, block[i]);
        }
        for (; c < features; ++c)
          for (int i = 0; i < kWidth; ++i)
            out[c * stride + key + i] = read(row[(key + i) * step + c]);
      }
      for (; key < groups[2].keys; ++key)
        for (int64_t c = 0; c < features; ++c) out[c * stride + key] = read(row[key * step + c]);
    });
  }

  /// The same with the features innermost: [rows, keys, padded features], zeros behind the last feature.
  static void pack(const Problem& p, const Strided& from, int64_t features,
                   const Group (&groups)[3], int64_t batch, int64_t head, A* to) {
    const int64_t step = p.axes[2].dilation * from.dims[2], width = padded(features);
    for_each_row(p, from, groups, batch, head, [&](const T* row, int64_t index) {
      A* out = to + index * groups[2].keys * width;
      for (int64_t key = 0; key < groups[2].keys; ++key, out += width)
        read_row(row + key * step, features, A{1}, out);
    });
  }

  /// features of one row, times `factor`, padded with zeros.
  static void read_row(const T* from, int64_t features, A factor, A* to) {
    int64_t c = 0;
    for (; c + kWidth <= features; c += kWidth) L::store(to + c, L::load(from + c) * factor);
    for (; c < features; ++c) to[c] = read(from[c]) * factor;
    for (; c < padded(features); ++c) to[c] = 0;
  }
  static void write_row(T* to, int64_t features, A factor, const A* from) {
    for (int64_t c = 0; c < features; ++c) write(to[c], static_cast<A>(from[c] * factor));
  }

  template <typename Give>
  static void for_each_row(const Problem& p, const Strided& from, const Group (&groups)[3],
                           int64_t batch, int64_t head, const Give& give) {
    const auto at = [&](int axis, int64_t key) {
      return place(p.axes[axis], groups[axis], key, p.axes[axis].key_begin) * from.dims[axis];
    };
    const T* base = static_cast<const T*>(from.data) + batch * from.batch + head * from.head +
                    at(2, groups[2].first_key);
    for (int64_t i = 0; i < groups[0].keys; ++i) {
      for (int64_t j = 0; j < groups[1].keys; ++j)
        give(base + at(0, groups[0].first_key + i) + at(1, groups[1].first_key + j),
             i * groups[1].keys + j);
    }
  }

  /// scores[q][j] = sum over c of queries[q][c] * keys[j][c], a vector of adjacent keys for each j.
  template <int kQueries, int kVectors>
  static inline void scores_of(const A* const* queries, const A* const* keys, int64_t stride,
                               int64_t features, A* scores) {
    Vector sums[kQueries][kVectors] = {};
    for (int64_t c = 0; c < features; ++c) {
      Vector q[kQueries];
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) q[i] = L::all(queries[i][c]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        const Vector k = L::load(keys[j] + c * stride);
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) sums[i][j] += q[i] * k;
      }
    }
    for (int i = 0; i < kQueries; ++i)
      for (int j = 0; j < kVectors; ++j) L::store(scores + (i * kChunk + j) * kWidth, sums[i][j]);
  }

  template <int kQueries>
  static void scores(const A* const* queries, const A* const* keys, int64_t count, int64_t stride,
                     int64_t features, A* out) {
    for (int64_t left = count; left > 0;) {
      // Even shares: 7 vectors are 4 + 3, as a single one would wait for its own sums.
      const int64_t shares = (left + kColumns - 1) / kColumns, take = (left + shares - 1) / shares;
      switch (take) {
        case 1:
          scores_of<kQueries, 1>(queries, keys, stride, features, out);
          break;
        case 2:
          scores_of<kQueries, 2>(queries, keys, stride, features, out);
          break;
        case 3:
          scores_of<kQueries, 3>(queries, keys, stride, features, out);
          break;
        case 4:
          scores_of<kQueries, 4>(queries, keys, stride, features, out);
          break;
        case 5:
          scores_of<kQueries, 5>(queries, keys, stride, features, out);
          break;
        default:
          scores_of<kQueries, 6>(queries, keys, stride, features, out);
          break;
      }
      keys += take;
      out += take * kWidth;
      left -= take;
    }
  }

  /// sums[q][features] += sum over keys of weights[q][key] * rows[key][features]; `rows[j]` is the first of `counts[j]` rows.
  template <int kQueries, int kVectors>
  static inline void gather_of(const A* weights, const A* const* rows, const int32_t* counts,
                               int64_t count, int64_t width, int64_t offset, A* const* sums) {
    Vector total[kQueries][kVectors];
    for (int i = 0; i < kQueries; ++i)
      for (int f = 0; f < kVectors; ++f) total[i][f] = L::load(sums[i] + offset + f * kWidth);
    for (int64_t j = 0; j < count; ++j) {
      const A* row = rows[j] + offset;
      const A* weight = weights + j * kWidth;
      for (int32_t k = 0; k < counts[j]; ++k, row += width) {
        Vector w[kQueries];
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) w[i] = L::all(weight[i * kChunk * kWidth + k]);
#pragma GCC unroll 4
        for (int f = 0; f < kVectors; ++f) {
          const Vector v = L::load(row + f * kWidth);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i) total[i][f] += w[i] * v;
        }
      }
    }
    for (int i = 0; i < kQueries; ++i)
      for (int f = 0; f < kVectors; ++f) L::store(sums[i] + offset + f * kWidth, total[i][f]);
  }

  template <int kQueries>
  static void gather(const A* weights, const A* const* rows, const int32_t* counts, int64_t count,
                     int64_t width, A* const* sums) {
    int64_t offset = 0;
    for (; offset + kFeatures * kWidth <= width; offset += kFeatures * kWidth)
      gather_of<kQueries, kFeatures>(weights, rows, counts, count, width, offset, sums);
    for (; offset < width; offset += kWidth)
      gather_of<kQueries, 1>(weights, rows, counts, count, width, offset, sums);
  }

  /// rows[key][features] += sum over q of weights[q][key] * vectors[q][features].
  template <int kQueries, int kVectors>
  static inline void scatter_of(const A* weights, A* const* rows, const int32_t* counts,
                                int64_t count, int64_t width, int64_t offset,
                                const A* const* vectors) {
    Vector v[kQueries][kVectors];
    for (int i = 0; i < kQueries; ++i)
      for (int f = 0; f < kVectors; ++f) v[i][f] = L::load(vectors[i] + offset + f * kWidth);
    for (int64_t j = 0; j < count; ++j) {
      A* row = rows[j] + offset;
      const A* weight = weights + j * kWidth;
      for (int32_t k = 0; k < counts[j]; ++k, row += width) {
        Vector w[kQueries];
#pragma GCC unroll 4
        for (int i = 0; i < kQueries; ++i) w[i] = L::all(weight[i * kChunk * kWidth + k]);
#pragma GCC unroll 4
        for (int f = 0; f < kVectors; ++f) {
          Vector sum = L::load(row + f * kWidth);
#pragma GCC unroll 4
          for (int i = 0; i < kQueries; ++i) sum += w[i] * v[i][f];
          L::store(row + f * kWidth, sum);
        }
      }
    }
  }

  template <int kQueries>
  static void scatter(const A* weights, A* const* rows, const int32_t* counts, int64_t count,
                      int64_t width, const A* const* vectors) {
    int64_t offset = 0;
    for (; offset + kFeatures * kWidth <= width; offset += kFeatures * kWidth)
      scatter_of<kQueries, kFeatures>(weights, rows, counts, count, width, offset, vectors);
    for (; offset < width; offset += kWidth)
      scatter_of<kQueries, 1>(weights, rows, counts, count, width, offset, vectors);
  }
};

}  // namespace
}  // namespace moonhalo::neighborhood
