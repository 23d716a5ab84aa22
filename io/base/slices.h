// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo::io {

/// The part that is taken of one dimension: elements begin, begin + step, ... (count of them). An index in
/// place of a slice takes one element and drops the dimension.
struct Slice {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t step = 1;
  bool dropped = false;
  bool operator==(const Slice&) const = default;
};

/// Everything of a shape.
std::vector<Slice> whole(c10::IntArrayRef shape);

/// Reads PyTorch's slicing from a string: "0:100, :, 2:9:3, -1", "..., 5". Missing dimensions are
/// whole, negative numbers count from the end, slices that reach too far are clipped as PyTorch
/// does. `what` names the sliced thing in errors. ValueError: not a slice list, more parts than
/// dimensions, an index out of range, a step below 1.
std::vector<Slice> parse_slices(const std::string& text, c10::IntArrayRef shape, const std::string& what);

/// The shape that slices leave: counts of the dimensions that are not dropped.
std::vector<int64_t> sliced_shape(const std::vector<Slice>& slices);

/// Slices of slices: `inner` has one entry for every dimension that `outer` keeps.
std::vector<Slice> compose(const std::vector<Slice>& outer, const std::vector<Slice>& inner);

}  // namespace moonhalo::io
