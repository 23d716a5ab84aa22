// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/ops/neighborhood/kernels/kernels.h"

// The queries of a slab in order, and the rows of keys that they see. See kernels.h for why everything has internal
// linkage.
namespace moonhalo::neighborhood {
namespace {

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

/// The place of a group's row in the tensor.
inline int64_t place(const Axis& axis, const Group& g, int64_t number, int64_t block_begin) {
  return number * axis.dilation + g.index - block_begin;
}

/// Along the slab's axis, unless it is the last, only as many rows of keys are kept packed as a window holds: the row
/// that is next takes the place of one that no window reaches any more.
inline int64_t kept_keys(const Problem& p, int axis, int64_t needed) {
  const bool rolls = axis == p.slab_axis && axis < 2;
  return rolls && p.axes[axis].window < needed ? p.axes[axis].window : needed;
}

/// Most keys of one axis that a slab keeps.
inline int64_t most_keys(const Problem& p, int axis) {
  const Axis& a = p.axes[axis];
  const int64_t held = group_rows(a, a.keys);
  const int64_t needed = axis == p.slab_axis ? p.slab_queries + a.window + a.stride : held;
  return kept_keys(p, axis, needed < held ? needed : held);
}

/// Memory that is given out in parts, one behind the other, each from a line of the caches on.
struct Scratch {
  template <typename E>
  E* take(int64_t count) {
    E* const part = reinterpret_cast<E*>(next);
    next += (count * static_cast<int64_t>(sizeof(E)) + 63) / 64 * 64;
    return part;
  }
  char* next;
};

class Walk {
 protected:
  /// Queries first_column, ... of the last axis, `columns` of them at most (all: 0 and a negative number).
  Walk(const Problem& p, int64_t unit, int64_t slab, int64_t first_column, int64_t columns) : p_(p), unit_(unit) {
    int64_t rest = unit;
    for (int i = 2; i >= 0; --i) {
      groups_[i] = group_of(p.axes[i], rest % p.axes[i].dilation);
      rest /= p.axes[i].dilation;
    }
    head_ = rest % p.heads;
    batch_ = rest / p.heads;
    take(groups_[p.slab_axis], slab * p.slab_queries, p.slab_queries);
    if (columns >= 0) take(groups_[2], first_column, columns);
    for (int i = 0; i < 3; ++i) find_keys(p.axes[i], groups_[i]);
    for (int i = 0; i < 2; ++i) kept_[i] = kept_keys(p, i, groups_[i].keys);
  }

  bool empty() const { return groups_[0].queries <= 0 || groups_[1].queries <= 0 || groups_[2].queries <= 0; }
  int64_t kept_rows() const { return kept_[0] * kept_[1]; }

  /// Calls give() for every row of queries along the last axis, with rows_ and sum_rows_ (unless null) as they see
  /// them. Before, pack(i, j) for every row of keys that was not seen so far.
  template <typename Pack, typename Give>
  void for_each_row(const Pack& pack, const Give& give) {
    for (int64_t i = 0; i < groups_[0].queries; ++i) {
      for (int64_t j = 0; j < groups_[1].queries; ++j) {
        outer_[0] = groups_[0].first_query + i;
        outer_[1] = groups_[1].first_query + j;
        const Interval a = window_of(p_.axes[0], groups_[0].length, outer_[0]),
                       b = window_of(p_.axes[1], groups_[1].length, outer_[1]);
        pack_until(p_.slab_axis == 0 ? a.end : p_.slab_axis == 1 ? b.end : p_.axes[2].extent, pack);
        row_count_ = 0;
        for (int64_t r = a.begin - groups_[0].first_key; r < a.end - groups_[0].first_key; ++r) {
          for (int64_t c = b.begin - groups_[1].first_key; c < b.end - groups_[1].first_key; ++c) {
            if (sum_rows_ != nullptr) sum_rows_[row_count_] = sum_row(held(0, r), held(1, c));
            rows_[row_count_++] = kept_row(r, c);
          }
        }
        give();
      }
    }
  }

  /// The place where a row of keys of the slab is kept.
  int64_t kept_row(int64_t i, int64_t j) const { return i % kept_[0] * kept_[1] + j % kept_[1]; }
  /// Where key `key` of the slab's keys is, of row (i, j) of them.
  int64_t key_offset(const Strided& t, int64_t i, int64_t j, int64_t key) const {
    const auto at = [&](int axis, int64_t number) {
      const Group& g = groups_[axis];
      return place(p_.axes[axis], g, g.first_key + number, p_.axes[axis].key_begin) * t.dims[axis];
    };
    return batch_ * t.batch + head_ * t.head + at(0, i) + at(1, j) + at(2, key);
  }
  int64_t query_offset(const Strided& t, int64_t query) const {
    return batch_ * t.batch + head_ * t.head + at_query(t, 0, outer_[0]) + at_query(t, 1, outer_[1]) +
           at_query(t, 2, query);
  }
  template <typename E>
  E* at(const Strided& t, int64_t query) const {
    return static_cast<E*>(t.data) + query_offset(t, query);
  }

  /// Number of a key of the slab among the keys of the group that the block holds; of a row of keys among its rows.
  int64_t held(int axis, int64_t key) const { return key + groups_[axis].first_key - groups_[axis].held_key; }
  /// Keys of the group that the block holds.
  int64_t held_keys(int axis) const {
    const Axis& a = p_.axes[axis];
    return rows_before(a, groups_[axis].index, a.key_begin + a.keys) - groups_[axis].held_key;
  }
  int64_t sum_row(int64_t i, int64_t j) const { return i * group_rows(p_.axes[1], p_.axes[1].keys) + j; }

  const Problem& p_;
  int64_t unit_, batch_ = 0, head_ = 0;
  Group groups_[3];
  int64_t *rows_ = nullptr, *sum_rows_ = nullptr;  ///< kept_rows() each
  int64_t row_count_ = 0;

 private:
  static void take(Group& g, int64_t skipped, int64_t most) {
    const int64_t left = g.queries - skipped;
    g.first_query += skipped;
    g.queries = left < most ? left : most;
  }
  int64_t at_query(const Strided& t, int axis, int64_t number) const {
    return place(p_.axes[axis], groups_[axis], number, p_.axes[axis].query_begin) * t.dims[axis];
  }

  // Packs keys and values up to row `end` of the group's slab axis; where that is the last axis, all of them.
  template <typename Pack>
  void pack_until(int64_t end, const Pack& pack) {
    const int axis = static_cast<int>(p_.slab_axis);
    const int64_t required = axis == 2 ? 1 : end - groups_[axis].first_key;
    for (; packed_ < required; ++packed_) {
      const int64_t first[2] = {axis == 0 ? packed_ : 0, axis == 1 ? packed_ : 0};
      const int64_t last[2] = {axis == 0 ? packed_ + 1 : groups_[0].keys, axis == 1 ? packed_ + 1 : groups_[1].keys};
      for (int64_t i = first[0]; i < last[0]; ++i)
        for (int64_t j = first[1]; j < last[1]; ++j) pack(i, j);
    }
  }

  int64_t kept_[2] = {1, 1};  ///< rows of keys that are kept packed at a time
  int64_t packed_ = 0;        ///< rows of the slab's axis that were packed so far
  int64_t outer_[2] = {0, 0};
};

}  // namespace
}  // namespace moonhalo::neighborhood
