// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/block.h"
#include "moonhalo/ops/neighborhood/kernels/lanes.h"
#include "moonhalo/ops/neighborhood/kernels/walk.h"

// The forward of a strip: as many neighbours along the last axis as a vector has lanes, row by row of queries. Lanes
// are queries. What lane i sees `d` places on from itself is column d: in packed rows [feature][key] a column of one
// feature is a load at d. So products, maxima and sums need no lane of another query, and where windows are not shifted
// into the domain no product is in vain. See kernels.h for why everything has internal linkage.
namespace moonhalo::neighborhood {
namespace {

template <typename T, typename A, int kBytes>
class Strip : Walk {
  using B = Block<T, A, kBytes>;
  using L = Lanes<A, kBytes>;
  using Vector = typename L::Vector;
  using Mask = typename L::Mask;
  static constexpr int kWidth = L::kWidth;
  static constexpr A kNone = -__builtin_huge_valf();
  static constexpr int kColumns = 7;       ///< of scores that are summed at a time, in registers
  static constexpr int kFeatures = 8;      ///< of the output that are summed at a time
  static constexpr int64_t kScores = 128;  ///< vectors of scores at a time: they stay in the first cache
  /// The most bytes that the packed keys and values of a window may have: every row of queries reads them, from near
  /// caches.
  static constexpr int64_t kWindowBytes = int64_t{64} << 10;

 public:
  static int64_t strips(const Problem& p) {
    const int64_t rows = p.axes[0].window * p.axes[1].window, stride = B::padded(kWidth - 1 + p.axes[2].window);
    const int64_t window_bytes = rows * (p.head_dim + p.value_dim) * stride * static_cast<int64_t>(sizeof(A));
    return p.slab_axis == 2 || rows == 1 || window_bytes > kWindowBytes ? 0 : all_strips(p);
  }

  static int64_t scratch_bytes(const Problem& p) {
    const int64_t rows = most_keys(p, 0) * most_keys(p, 1), columns = most_columns(p.axes[2]);
    const int64_t features = p.head_dim + p.value_dim;
    return 64 * 16 + 2 * rows * static_cast<int64_t>(sizeof(int64_t)) +
           static_cast<int64_t>(sizeof(A)) *
               (rows * features * B::padded(kWidth + columns) + features * kWidth + (kScores + 2 * columns) * kWidth);
  }

  static void forward(const Problem& p, int64_t unit, int64_t part, void* scratch) {
    const int64_t strips = all_strips(p);
    Strip s(p, unit, part / strips, part % strips, {static_cast<char*>(scratch)});
    if (s.empty()) return;
    const auto pack = [&](int64_t i, int64_t j) {
      s.pack_row(p.key, p.head_dim, i, j, s.keys_ + s.kept_row(i, j) * p.head_dim * s.stride_);
      s.pack_row(p.value, p.value_dim, i, j, s.values_ + s.kept_row(i, j) * p.value_dim * s.stride_);
    };
    s.for_each_row(pack, [&] {
      if (s.stride_ == 2 * kWidth) return s.template attend<2 * kWidth>();
      if (s.stride_ == 3 * kWidth) return s.template attend<3 * kWidth>();
      s.template attend<0>();
    });
  }

 private:
  static int64_t all_strips(const Problem& p) {
    return (group_rows(p.axes[2], p.axes[2].queries) + kWidth - 1) / kWidth;
  }
  // Windows of neighbours begin at most a stride apart, or do not move on while the queries do.
  static int64_t most_columns(const Axis& axis) { return axis.window + axis.stride + 2 * kWidth; }

  Strip(const Problem& p, int64_t unit, int64_t slab, int64_t strip, Scratch scratch)
      : Walk(p, unit, slab, strip * kWidth, kWidth) {
    if (empty()) return;
    const int64_t most = most_columns(p.axes[2]);
    masks_ = reinterpret_cast<Mask*>(scratch.take<A>(most * kWidth));
    find_columns();
    held_keys_ = held_keys(2);
    const int64_t rows = kept_rows();
    rows_ = scratch.take<int64_t>(rows);
    keys_ = scratch.take<A>(rows * p.head_dim * stride_);
    values_ = scratch.take<A>(rows * p.value_dim * stride_);
    query_ = scratch.take<A>(p.head_dim * kWidth);
    sums_ = scratch.take<A>(p.value_dim * kWidth);
    scores_ = scratch.take<A>((kScores + most) * kWidth);
  }

  void find_columns() {
    const Group& g = groups_[2];
    Interval windows[kWidth];
    int64_t last = 0;
    for (int64_t i = 0; i < g.queries; ++i) {
      windows[i] = window_of(p_.axes[2], g.length, g.first_query + i);
      windows[i] = {windows[i].begin - g.first_key - i, windows[i].end - g.first_key - i};
      first_column_ = i == 0 || windows[i].begin < first_column_ ? windows[i].begin : first_column_;
      last = i == 0 || windows[i].end > last ? windows[i].end : last;
    }
    columns_ = last - first_column_;
    stride_ = B::padded(kWidth - 1 + columns_);
    for (int64_t d = 0; d < columns_; ++d) {
      for (int64_t i = 0; i < kWidth; ++i) {
        const bool seen = i < g.queries && windows[i].begin <= first_column_ + d && first_column_ + d < windows[i].end;
        masks_[d][i] = seen ? -1 : 0;
        all_seen_ &= seen;
      }
    }
  }

  // to[c * stride + k] = feature c of row k times `factor`, for rows [begin, end) of kWidth, `step` apart; others are
  // zero.
  static void turn(const T* rows, int64_t step, int64_t begin, int64_t end, int64_t features, A factor, A* to,
                   int64_t stride) {
    if (begin <= 0 && end >= kWidth) return turn_some<true>(rows, step, 0, kWidth, features, factor, to, stride);
    turn_some<false>(rows, step, begin, end, features, factor, to, stride);
  }
  template <bool kAll>
  static void turn_some(const T* rows, int64_t step, int64_t begin, int64_t end, int64_t features, A factor, A* to,
                        int64_t stride) {
    int64_t c = 0;
    for (; c + kWidth <= features; c += kWidth) {
      Vector v[kWidth];
#pragma GCC unroll 8
      for (int64_t k = 0; k < kWidth; ++k)
        v[k] = kAll || (begin <= k && k < end) ? L::load(rows + k * step + c) * factor : Vector{};
      L::transpose(v);
#pragma GCC unroll 8
      for (int64_t k = 0; k < kWidth; ++k) L::store(to + (c + k) * stride, v[k]);
    }
    for (; c < features; ++c)
      for (int64_t k = 0; k < kWidth; ++k)
        to[c * stride + k] = kAll || (begin <= k && k < end) ? read(rows[k * step + c]) * factor : 0;
  }

  // Keys that the block does not hold are zero; no window has them.
  void pack_row(const Strided& from, int64_t features, int64_t i, int64_t j, A* to) const {
    const int64_t step = p_.axes[2].dilation * from.dims[2];
    const T* row = static_cast<const T*>(from.data) + key_offset(from, i, j, first_column_);
    const int64_t before = -first_column_ - held(2, 0), after = before + held_keys_;
    for (int64_t k = 0; k < stride_; k += kWidth)
      turn(row + k * step, step, before - k, after - k, features, A{1}, to + k, stride_);
    last_row_[&from == &p_.value] = row;
  }

  // Online softmax. kStride is stride_ if it is known, else 0.
  template <int kStride>
  void attend() {
    const int64_t first = groups_[2].first_query, rows_at_once = columns_ < kScores ? kScores / columns_ : 1;
    const T* queries = at<const T>(p_.query, first);
    turn(queries, p_.axes[2].dilation * p_.query.dims[2], 0, groups_[2].queries, p_.head_dim, static_cast<A>(p_.scale),
         query_, kWidth);
    for (int64_t c = 0; c < p_.value_dim; ++c) L::store(sums_ + c * kWidth, Vector{});
    Vector shift = L::all(kNone), total{};
    for (int64_t row = 0; row < row_count_; row += rows_at_once) {
      const int64_t left = row_count_ - row, rows = left < rows_at_once ? left : rows_at_once;
      Vector largest = shift;
      for (int64_t r = 0; r < rows; ++r) {
        ask_ahead(queries, row + r);
        scores<kStride>(keys_ + rows_[row + r] * p_.head_dim * stride_, scores_ + r * columns_ * kWidth, largest);
      }
      const Vector safe = largest == kNone ? Vector{} : largest;
      if (row > 0) rescale(L::exp(shift - safe), total);
      shift = largest;
      for (int64_t j = 0; j < rows * columns_; ++j) {
        const Vector weight = L::exp(L::load(scores_ + j * kWidth) - safe);
        total += weight;
        L::store(scores_ + j * kWidth, weight);
      }
      gather_all<kStride>(rows_ + row, rows);
    }
    write(shift, total);
  }

  // Asks for what the next row of queries needs, a part beside each row of keys: rows of one head are far apart, where
  // the processor does not look ahead by itself, and asking for all at once would wait.
  void ask_ahead(const T* queries, int64_t part) const {
    const int axis = static_cast<int>(p_.slab_axis);
    const auto ask = [&](const Strided& t, const T* row, int64_t count, int64_t features) {
      row += p_.axes[axis].dilation * t.dims[axis];
      for (int64_t k = part; k < count; k += row_count_)
        B::prefetch(row + k * p_.axes[2].dilation * t.dims[2], features);
    };
    ask(p_.key, last_row_[0], stride_, p_.head_dim);
    ask(p_.value, last_row_[1], stride_, p_.value_dim);
    ask(p_.query, queries, kWidth, p_.head_dim);
  }

  void rescale(Vector factor, Vector& total) {
    total *= factor;
    for (int64_t c = 0; c < p_.value_dim; ++c) L::store(sums_ + c * kWidth, L::load(sums_ + c * kWidth) * factor);
  }

  template <int kStride>
  [[gnu::always_inline]] inline void scores(const A* row, A* out, Vector& largest) const {
    const int64_t parts = (columns_ + kColumns - 1) / kColumns;
    for (int64_t part = 0, d = 0; part < parts; ++part) {
      const int64_t count = (columns_ - d + parts - part - 1) / (parts - part);
      switch (count) {
        case 1:
          largest = scores_of<1, kStride>(row, out, d, largest);
          break;
        case 2:
          largest = scores_of<2, kStride>(row, out, d, largest);
          break;
        case 3:
          largest = scores_of<3, kStride>(row, out, d, largest);
          break;
        case 4:
          largest = scores_of<4, kStride>(row, out, d, largest);
          break;
        case 5:
          largest = scores_of<5, kStride>(row, out, d, largest);
          break;
        case 6:
          largest = scores_of<6, kStride>(row, out, d, largest);
          break;
        default:
          largest = scores_of<7, kStride>(row, out, d, largest);
          break;
      }
      d += count;
    }
  }
  // Scores of kCount columns from d on; returns the largest of them and of `largest`.
  template <int kCount, int kStride>
  Vector scores_of(const A* row, A* out, int64_t d, Vector largest) const {
    const int64_t stride = kStride > 0 ? kStride : stride_;
    Vector sums[kCount] = {};
    const A* key = row + d;
    for (int64_t c = 0; c < p_.head_dim; ++c, key += stride) {
      const Vector q = L::load(query_ + c * kWidth);
#pragma GCC unroll 7
      for (int k = 0; k < kCount; ++k) sums[k] += q * L::load(key + k);
    }
#pragma GCC unroll 7
    for (int k = 0; k < kCount; ++k) {
      if (!all_seen_) sums[k] = masks_[d + k] ? sums[k] : L::all(kNone);
      largest = sums[k] > largest ? sums[k] : largest;
      L::store(out + (d + k) * kWidth, sums[k]);
    }
    return largest;
  }

  template <int kStride>
  void gather_all(const int64_t* rows, int64_t count) {
    all_seen_ ? gather_features<kStride, true>(rows, count) : gather_features<kStride, false>(rows, count);
  }
  template <int kStride, bool kAllSeen>
  void gather_features(const int64_t* rows, int64_t count) {
    int64_t c = 0;
    for (; c + kFeatures <= p_.value_dim; c += kFeatures) gather<kFeatures, kStride, kAllSeen>(rows, count, c);
    for (; c < p_.value_dim; ++c) gather<1, kStride, kAllSeen>(rows, count, c);
  }
  // Adds weights times values to the sums of kCount features. Values that a query does not see are left out: a weight
  // of zero times NaN would be NaN.
  template <int kCount, int kStride, bool kAllSeen>
  void gather(const int64_t* rows, int64_t count, int64_t feature) {
    const int64_t stride = kStride > 0 ? kStride : stride_;
    Vector sums[kCount];
#pragma GCC unroll 8
    for (int f = 0; f < kCount; ++f) sums[f] = L::load(sums_ + (feature + f) * kWidth);
    const A* weight = scores_;
    for (int64_t r = 0; r < count; ++r) {
      const A* value = values_ + (rows[r] * p_.value_dim + feature) * stride;
      for (int64_t d = 0; d < columns_; ++d, weight += kWidth, ++value) {
        const Vector w = L::load(weight);
#pragma GCC unroll 8
        for (int f = 0; f < kCount; ++f) {
          Vector v = L::load(value + f * stride);
          if constexpr (!kAllSeen) v = masks_[d] ? v : Vector{};
          sums[f] += w * v;
        }
      }
    }
#pragma GCC unroll 8
    for (int f = 0; f < kCount; ++f) L::store(sums_ + (feature + f) * kWidth, sums[f]);
  }

  void write(Vector shift, Vector total) const {
    const int64_t first = groups_[2].first_query, queries = groups_[2].queries;
    const Vector logsumexp = total == 0 ? L::all(kNone) : shift + L::log(total), factor = 1 / total;
    for (int64_t i = 0; i < queries; ++i) *at<A>(p_.logsumexp, first + i) = logsumexp[i];
    if (queries == kWidth) return write_rows<true>(at<T>(p_.output, first), factor);
    write_rows<false>(at<T>(p_.output, first), factor);
  }
  template <bool kAll>
  void write_rows(T* rows, Vector factor) const {
    const int64_t step = p_.axes[2].dilation * p_.output.dims[2], queries = kAll ? kWidth : groups_[2].queries;
    int64_t c = 0;
    for (; c + kWidth <= p_.value_dim; c += kWidth) {
      Vector v[kWidth];
#pragma GCC unroll 8
      for (int k = 0; k < kWidth; ++k) v[k] = L::load(sums_ + (c + k) * kWidth) * factor;
      L::transpose(v);
#pragma GCC unroll 8
      for (int64_t i = 0; i < kWidth; ++i)
        if (kAll || i < queries) L::store(rows + i * step + c, v[i]);
    }
    for (; c < p_.value_dim; ++c)
      for (int64_t i = 0; i < queries; ++i)
        neighborhood::write(rows[i * step + c], static_cast<A>(sums_[c * kWidth + i] * factor[i]));
  }

  int64_t first_column_ = 0, columns_ = 0;  ///< relative to a lane's query, in the keys of the slab
  int64_t stride_ = 0;                      ///< keys of a packed row
  int64_t held_keys_ = 0;                   ///< of the group, along the last axis, in the block
  mutable const T* last_row_[2] = {};       ///< of keys and of values that was packed
  bool all_seen_ = true;                    ///< every column is in the window of every lane
  Mask* masks_ = nullptr;                   ///< per column
  A *keys_ = nullptr, *values_ = nullptr, *query_ = nullptr, *sums_ = nullptr, *scores_ = nullptr;
};

}  // namespace
}  // namespace moonhalo::neighborhood
