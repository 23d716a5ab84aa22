// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/block.h"
#include "moonhalo/ops/neighborhood/kernels/strip.h"
#include "moonhalo/ops/neighborhood/kernels/walk.h"

// A slab of one unit, forward and backward. See kernels.h.
namespace moonhalo::neighborhood {
namespace {

template <typename T, typename A, int kBytes>
class Slab : Walk {
  using B = Block<T, A, kBytes>;
  using L = Lanes<A, kBytes>;
  using Vector = typename L::Vector;
  using Mask = typename L::Mask;
  static constexpr int kWidth = L::kWidth;
  static constexpr int64_t kScores = kPair * kScoreStride * kWidth;
  static constexpr A kNone = -__builtin_huge_valf();
  /// The greatest distance of a guess from the largest score: the farther, the fewer digits the weights keep.
  static constexpr A kSlack = 8;

 public:
  static int64_t padded(int64_t features) { return B::padded(features); }

  static int64_t scratch_bytes(const Problem& p) {
    const int64_t rows = most_keys(p, 0) * most_keys(p, 1), keys = most_keys(p, 2);
    const int64_t key_width = padded(p.head_dim), value_width = padded(p.value_dim);
    return 64 * 16 +
           static_cast<int64_t>(sizeof(A)) * (rows * (kept_stride(keys, key_width) + kept_stride(keys, value_width)) +
                                              2 * kScores + (kWidth + 4 * kPair) * (key_width + value_width)) +
           2 * rows * static_cast<int64_t>(sizeof(int64_t));
  }

  static void forward(const Problem& p, int64_t unit, int64_t slab, void* scratch) {
    Slab s(p, unit, slab, scratch);
    if (s.empty()) return;
    s.for_each_pair([&](auto count, int64_t first) { s.attend<count.kValue>(first); });
  }

  static void backward(const Problem& p, int64_t unit, int64_t slab, void* scratch) {
    Slab s(p, unit, slab, scratch);
    if (s.empty()) return;
    s.for_each_pair([&](auto count, int64_t first) { s.attend_back<count.kValue>(first); });
  }

  static void store_sums(const Problem& p, int64_t unit) {
    Slab s(p, unit, 0, nullptr);
    s.store_sums_of(p.grad_key, p.head_dim, static_cast<const A*>(p.key_sums));
    s.store_sums_of(p.grad_value, p.value_dim, static_cast<const A*>(p.value_sums));
  }

 private:
  // From a row of packed keys to the next: a multiple of 4 KiB and 17 lines, or rows would share few sets of the first
  // cache.
  static int64_t kept_stride(int64_t keys, int64_t width) {
    constexpr int64_t kPage = 4096 / sizeof(A), kShift = 17 * 64 / sizeof(A);
    return (keys * width - kShift + kPage - 1) / kPage * kPage + kShift;
  }

  template <int kCount>
  struct Count {
    static constexpr int kValue = kCount;
  };

  Slab(const Problem& p, int64_t unit, int64_t slab, void* scratch) : Walk(p, unit, slab, 0, -1) {
    width_ = padded(p.head_dim);
    value_width_ = padded(p.value_dim);
    if (scratch != nullptr && !empty()) divide({static_cast<char*>(scratch)});
  }

  void divide(Scratch scratch) {
    const int64_t rows = kept_rows(), keys = groups_[2].keys;
    // Vectors of keys may reach over the last.
    key_stride_ = kept_stride(keys, width_);
    value_stride_ = kept_stride(keys, value_width_);
    keys_ = scratch.take<A>(rows * key_stride_ + kWidth * width_);
    values_ = scratch.take<A>(rows * value_stride_ + kWidth * value_width_);
    scores_ = scratch.take<A>(kScores);
    more_scores_ = scratch.take<A>(kScores);
    for (int i = 0; i < kPair; ++i) {
      query_[i] = scratch.take<A>(width_);
      sums_[i] = scratch.take<A>(width_ > value_width_ ? width_ : value_width_);
      grad_[i] = scratch.take<A>(value_width_);
    }
    output_ = scratch.take<A>(value_width_);
    rows_ = scratch.take<int64_t>(rows);
    sum_rows_ = scratch.take<int64_t>(rows);
  }

  // Calls give(Count<n>, number of the first of n queries along the last dim), n = 2 or 1, with rows_ as they see them.
  template <typename Give>
  void for_each_pair(const Give& give) {
    const auto pack = [&](int64_t i, int64_t j) {
      pack_row(p_.key, p_.head_dim, i, j, keys_ + kept_row(i, j) * key_stride_);
      pack_row(p_.value, p_.value_dim, i, j, values_ + kept_row(i, j) * value_stride_);
    };
    for_each_row(pack, [&] {
      known_queries_ = 0;
      const int64_t end = groups_[2].first_query + groups_[2].queries;
      int64_t query = groups_[2].first_query;
      for (; query + kPair <= end; query += kPair) give(Count<kPair>{}, query);
      if (query < end) give(Count<1>{}, query);
    });
  }

  void pack_row(const Strided& from, int64_t features, int64_t i, int64_t j, A* to) const {
    const T* row = static_cast<const T*>(from.data) + key_offset(from, i, j, 0);
    B::pack(row, groups_[2].keys, p_.axes[2].dilation * from.dims[2], features, to);
  }

  // Keys that a pair sees in every row: columns [base, base + span) of the slab's keys, and of these each query its own
  // part.
  struct View {
    int64_t base = 0, span = 0, vectors = 0;
    int32_t begin[kPair], end[kPair];
  };
  template <int kQueries>
  View view_of(int64_t first) const {
    Interval windows[kQueries];
    for (int i = 0; i < kQueries; ++i) windows[i] = window_of(p_.axes[2], groups_[2].length, first + i);
    View view;
    view.base = windows[0].begin;
    view.span = windows[kQueries - 1].end - view.base;
    for (int i = 0; i < kQueries; ++i) {
      view.begin[i] = static_cast<int32_t>(windows[i].begin - view.base);
      view.end[i] = static_cast<int32_t>(windows[i].end - view.base);
    }
    view.base -= groups_[2].first_key;
    view.vectors = (view.span + kWidth - 1) / kWidth;
    return view;
  }

  bool identical(const View& view, int queries) const {
    bool same = known_queries_ == queries && known_.span == view.span;
    for (int i = 0; i < queries; ++i) same &= known_.begin[i] == view.begin[i] && known_.end[i] == view.end[i];
    return same;
  }

  // Vectors of keys, at most kChunk of them, in a walk over all rows of a view; without the view's base, so that most
  // pairs find them as the pair before left them.
  struct Chunk {
    int64_t count = 0;
    int64_t key[kChunk], value[kChunk];  ///< where the first of each is among those kept
    int64_t sum[kChunk];                 ///< row of the sums
    SeenKeys keys[kChunk];               ///< of the view in the vector
    Mask mine[kPair][kChunk];
  };
  template <int kQueries, typename Give>
  void for_chunks(const View& view, const Give& give) {
    if (row_count_ * view.vectors <= kChunk) {
      if (!identical(view, kQueries)) {
        fill<kQueries>(view, 0, 0);
        known_ = view;
        known_queries_ = kQueries;
      }
      return give();
    }
    known_queries_ = 0;
    for (int64_t row = 0, vector = 0; row < row_count_;) {
      fill<kQueries>(view, row, vector);
      give();
      vector += chunk_.count;
      row += vector / view.vectors;
      vector %= view.vectors;
    }
  }
  template <int kQueries>
  void fill(const View& view, int64_t row, int64_t vector) {
    Mask lane;
    for (int i = 0; i < kWidth; ++i) lane[i] = i;
    const int64_t sums_per_row = group_rows(p_.axes[2], p_.axes[2].keys);
    int64_t& n = chunk_.count;
    for (n = 0; row < row_count_ && n < kChunk; ++n) {
      const int64_t column = vector * kWidth, left = view.span - column;
      chunk_.key[n] = rows_[row] * key_stride_ + column * width_;
      chunk_.value[n] = rows_[row] * value_stride_ + column * value_width_;
      chunk_.sum[n] = sum_rows_[row] * sums_per_row + column;
      chunk_.keys[n].count = static_cast<int32_t>(left < kWidth ? left : kWidth);
      chunk_.keys[n].both = within(view.begin[kQueries - 1] - column, chunk_.keys[n].count);
      chunk_.keys[n].last = within(view.end[0] - column, chunk_.keys[n].count);
      const Mask place = lane + static_cast<typename L::Int>(column);
      for (int i = 0; i < kQueries; ++i) chunk_.mine[i][n] = (place >= view.begin[i]) & (place < view.end[i]);
      if (++vector == view.vectors) {
        vector = 0;
        ++row;
      }
    }
  }
  static int32_t within(int64_t place, int32_t count) {
    return static_cast<int32_t>(place < 0 ? 0 : place < count ? place : count);
  }
  void packed_keys(const View& view, const A** pointers) const {
    for (int64_t j = 0; j < chunk_.count; ++j) pointers[j] = keys_ + view.base * width_ + chunk_.key[j];
  }
  void packed_values(const View& view, const A** pointers) const {
    for (int64_t j = 0; j < chunk_.count; ++j) pointers[j] = values_ + view.base * value_width_ + chunk_.value[j];
  }

  // Online softmax. Weights are exp(score - shift), where the shift is guessed from the pair before: scores need not
  // wait for their maximum, and become weights while those of the next row are computed. Where the guess was bad, it is
  // done again.
  template <int kQueries>
  void attend(int64_t first) {
    const View view = view_of<kQueries>(first);
    A most[kQueries], total[kQueries] = {};
    for (int i = 0; i < kQueries; ++i) {
      B::prefetch(at<const T>(p_.query, first + i + kPair), p_.head_dim);
      B::read_row(at<const T>(p_.query, first + i), p_.head_dim, static_cast<A>(p_.scale), query_[i]);
      for (int64_t c = 0; c < value_width_; ++c) sums_[i][c] = 0;
      most[i] = kNone;
    }
    const A* pointers[kChunk];
    for_chunks<kQueries>(view, [&] {
      packed_keys(view, pointers);
      B::template scores<kQueries>(query_, pointers, chunk_.keys, chunk_.count, width_, scores_);
      weigh_chunk<kQueries>(most, total);
      packed_values(view, pointers);
      B::template gather<kQueries>(more_scores_, pointers, chunk_.keys, chunk_.count, value_width_, sums_);
    });
    for (int i = 0; i < kQueries; ++i) {
      B::write_row(at<T>(p_.output, first + i), p_.value_dim, 1 / total[i], sums_[i]);
      *at<A>(p_.logsumexp, first + i) = total[i] == 0 ? kNone : shift_[i] + L::log(L::all(total[i]))[0];
    }
  }

  // scores_ become the weights of the chunk; `most` is the largest score so far, `total` the sum of the weights so far.
  template <int kQueries>
  [[gnu::always_inline]] inline void weigh_chunk(A (&most)[kQueries], A (&total)[kQueries]) {
    Vector largest[kQueries], sum[kQueries];
    const auto weigh_all = [&] {
      for (int i = 0; i < kQueries; ++i) {
        largest[i] = L::all(most[i]);
        sum[i] = Vector{};
      }
      weigh<kQueries>(largest, sum);
    };
    weigh_all();
    bool again = false;
    A nows[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      const A now = nows[i] = L::largest(largest[i]), off = now - shift_[i];
      if (now == kNone || (off <= kSlack && off >= -kSlack)) continue;
      if (most[i] != kNone) {
        const A smaller = L::exp(L::all(shift_[i] - now))[0];
        total[i] *= smaller;
        for (int64_t c = 0; c < value_width_; ++c) sums_[i][c] *= smaller;
      }
      shift_[i] = now;
      again = true;
    }
    if (again) weigh_all();
    for (int i = 0; i < kQueries; ++i) {
      most[i] = nows[i];
      total[i] += L::sum(sum[i]);
    }
  }

  template <int kQueries>
  [[gnu::always_inline]] inline void weigh(Vector (&largest)[kQueries], Vector (&sum)[kQueries]) {
    const int64_t count = chunk_.count;
    Vector shift[kQueries];
    for (int i = 0; i < kQueries; ++i) shift[i] = L::all(shift_[i]);
    for (int64_t j = 0; j < count; ++j) {
#pragma GCC unroll 4
      for (int i = 0; i < kQueries; ++i) {
        const A* from = scores_ + (i * kScoreStride + j) * kWidth;
        const Vector score = chunk_.mine[i][j] ? L::load(from) : L::all(kNone);
        largest[i] = score > largest[i] ? score : largest[i];
        const Vector weight = L::exp(score - shift[i]);
        sum[i] += weight;
        L::store(more_scores_ + (i * kScoreStride + j) * kWidth, weight);
      }
    }
  }

  // With P = exp(scale q.k - logsumexp), delta = grad.output - grad_logsumexp and D = P (grad.v - delta): grad_value +=
  // P grad, grad_query += scale D k, grad_key += scale D q. Source: T. Dao et al., FlashAttention, 2022, algorithm 4.
  template <int kQueries>
  void attend_back(int64_t first) {
    const View view = view_of<kQueries>(first);
    Vector logsumexp[kQueries], delta[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      for (const Strided* t : {&p_.query, &p_.grad_output, &p_.output})
        B::prefetch(at<const T>(*t, first + i + kPair), t == &p_.query ? p_.head_dim : p_.value_dim);
      B::read_row(at<const T>(p_.query, first + i), p_.head_dim, static_cast<A>(p_.scale), query_[i]);
      B::read_row(at<const T>(p_.grad_output, first + i), p_.value_dim, A{1}, grad_[i]);
      for (int64_t c = 0; c < width_; ++c) sums_[i][c] = 0;
      logsumexp[i] = L::all(*at<const A>(p_.logsumexp, first + i));
      delta[i] = L::all(delta_of(first + i, grad_[i]));
    }
    const A* pointers[kChunk];
    A* targets[kChunk];
    for_chunks<kQueries>(view, [&] {
      packed_values(view, pointers);
      B::template scores<kQueries>(grad_, pointers, chunk_.keys, chunk_.count, value_width_, more_scores_);
      packed_keys(view, pointers);
      B::template scores<kQueries>(query_, pointers, chunk_.keys, chunk_.count, width_, scores_);
      for (int i = 0; i < kQueries; ++i) {
        for (int64_t j = 0; j < chunk_.count; ++j) {
          A* score = scores_ + (i * kScoreStride + j) * kWidth;
          A* grad = more_scores_ + (i * kScoreStride + j) * kWidth;
          const Mask mine = chunk_.mine[i][j];
          const Vector weight = L::exp(mine ? L::load(score) - logsumexp[i] : L::all(kNone));
          L::store(score, weight);
          L::store(grad, mine ? weight * (L::load(grad) - delta[i]) : Vector{});
        }
      }
      B::template gather<kQueries>(more_scores_, pointers, chunk_.keys, chunk_.count, width_, sums_);
      sums_of_keys(view, static_cast<A*>(p_.value_sums), value_width_, targets);
      B::template scatter<kQueries>(scores_, targets, chunk_.keys, chunk_.count, value_width_, grad_);
      sums_of_keys(view, static_cast<A*>(p_.key_sums), width_, targets);
      B::template scatter<kQueries>(more_scores_, targets, chunk_.keys, chunk_.count, width_, query_);
    });
    for (int i = 0; i < kQueries; ++i)
      B::write_row(at<T>(p_.grad_query, first + i), p_.head_dim, static_cast<A>(p_.scale), sums_[i]);
  }

  A delta_of(int64_t query, const A* grad) {
    B::read_row(at<const T>(p_.output, query), p_.value_dim, A{1}, output_);
    Vector sum{};
    for (int64_t c = 0; c < value_width_; c += kWidth) sum += L::load(grad + c) * L::load(output_ + c);
    const A of_logsumexp = p_.grad_logsumexp.data == nullptr ? 0 : *at<const A>(p_.grad_logsumexp, query);
    return L::sum(sum) - of_logsumexp;
  }

  void sums_of_keys(const View& view, A* sums, int64_t width, A** pointers) const {
    A* unit = sums + (unit_ * unit_keys(p_) + held(2, view.base)) * width;
    for (int64_t j = 0; j < chunk_.count; ++j) pointers[j] = unit + chunk_.sum[j] * width;
  }

  void store_sums_of(const Strided& to, int64_t features, const A* sums) const {
    const int64_t width = padded(features), keys = group_rows(p_.axes[2], p_.axes[2].keys);
    const A* unit = sums + unit_ * unit_keys(p_) * width;
    const int64_t count[3] = {held_keys(0), held_keys(1), held_keys(2)};
    const auto place_of = [&](int axis, int64_t key) {
      return place(p_.axes[axis], groups_[axis], groups_[axis].held_key + key, p_.axes[axis].key_begin) * to.dims[axis];
    };
    for (int64_t i = 0; i < count[0]; ++i) {
      for (int64_t j = 0; j < count[1]; ++j) {
        T* row = static_cast<T*>(to.data) + batch_ * to.batch + head_ * to.head + place_of(0, i) + place_of(1, j);
        for (int64_t k = 0; k < count[2]; ++k)
          B::write_row(row + place_of(2, k), features, A{1}, unit + (sum_row(i, j) * keys + k) * width);
      }
    }
  }

  int64_t width_ = 0, value_width_ = 0, key_stride_ = 0, value_stride_ = 0;
  A *keys_ = nullptr, *values_ = nullptr;
  A *scores_ = nullptr, *more_scores_ = nullptr;
  A *query_[kPair] = {}, *sums_[kPair] = {}, *grad_[kPair] = {}, *output_ = nullptr;
  A shift_[kPair] = {};
  Chunk chunk_;
  View known_;  ///< that the chunk was filled for
  int known_queries_ = 0;
};

template <typename T, typename A, int kBytes>
constexpr Kernels kernels_of() {
  using S = Slab<T, A, kBytes>;
  using Narrow = Strip<T, A, kBytes>;
  return {.accumulator_bytes = sizeof(A),
          .padded = &S::padded,
          .scratch_bytes = &S::scratch_bytes,
          .forward = &S::forward,
          .backward = &S::backward,
          .store_sums = &S::store_sums,
          .strips = &Narrow::strips,
          .strip_scratch_bytes = &Narrow::scratch_bytes,
          .forward_strip = &Narrow::forward};
}
template <int kBytes>
double multiply_adds(int64_t rounds) {
  using L = Lanes<float, kBytes>;
  constexpr int kSums = 12;
  volatile float source = 0.5f;
  const typename L::Vector factor = L::all(source), addend = L::all(source);
  typename L::Vector sums[kSums];
  for (int j = 0; j < kSums; ++j) sums[j] = L::all(source + static_cast<float>(j));
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kSums; ++j) sums[j] = sums[j] * factor + addend;
  }
  for (int j = 1; j < kSums; ++j) sums[0] += sums[j];
  source = L::sum(sums[0]);
  return 2.0 * kSums * L::kWidth * static_cast<double>(rounds);
}

template <int kBytes>
constexpr KernelSet kernel_set(const char* name) {
  return {name, kernels_of<float, float, kBytes>(), kernels_of<double, double, kBytes>(),
          kernels_of<BFloat16, float, kBytes>(), &multiply_adds<kBytes>};
}

}  // namespace
}  // namespace moonhalo::neighborhood
