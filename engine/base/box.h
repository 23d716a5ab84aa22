// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace moonhalo {

/// The rows [begin, end) of one dim; empty if begin >= end. Its functions are always inlined, because kernels that are
/// compiled once per instruction set use it and the linker must not share code between them. Not collective.
struct Interval {
  int64_t begin = 0, end = 0;

  /// True if no row is in it; the number of rows; true if a row, or every row of another interval, is in it.
  [[gnu::always_inline]] constexpr bool empty() const { return begin >= end; }
  [[gnu::always_inline]] constexpr int64_t size() const { return empty() ? 0 : end - begin; }
  [[gnu::always_inline]] constexpr bool contains(int64_t row) const { return begin <= row && row < end; }
  [[gnu::always_inline]] constexpr bool contains(const Interval& other) const {
    return begin <= other.begin && other.end <= end;
  }
  /// Returns the rows that are in both; if there are none, an empty interval with begin <= end.
  [[gnu::always_inline]] constexpr Interval intersect(const Interval& other) const {
    const int64_t low = begin < other.begin ? other.begin : begin, high = end < other.end ? end : other.end;
    return {low, low < high ? high : low};
  }
  /// Returns the interval `by` rows later.
  [[gnu::always_inline]] constexpr Interval shifted(int64_t by) const { return {begin + by, end + by}; }
  auto operator<=>(const Interval&) const = default;
};

/// A box of an index space: one Interval per dim. A box without dims holds one element, like a 0-dim tensor. Not
/// collective.
class Box {
 public:
  Box() = default;
  Box(std::initializer_list<Interval> dims);

  /// The number of dims; the rows along a dim; adds a dim behind the others; the dims for loops.
  int64_t ndim() const { return static_cast<int64_t>(dims_.size()); }
  Interval& operator[](int64_t dim) { return dims_[dim]; }
  const Interval& operator[](int64_t dim) const { return dims_[dim]; }
  void push_back(const Interval& rows);
  auto begin() const { return dims_.begin(); }
  auto end() const { return dims_.end(); }

  /// Returns the number of elements; true if there are none; the number of rows per dim.
  int64_t numel() const;
  bool empty() const;
  std::vector<int64_t> shape() const;
  /// Returns the elements that are in both. Both boxes have the same number of dims.
  Box intersect(const Box& other) const;
  bool operator==(const Box& other) const;
  /// Orders by the first dim that differs, for use as a map key.
  bool operator<(const Box& other) const;

 private:
  std::vector<Interval> dims_;
};

}  // namespace moonhalo
