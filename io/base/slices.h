// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <vector>

namespace moonhalo::io {

/// The selection along one dim: the elements begin, begin + step, ... (`count` of them). An index selects one element
/// and drops the dim (`dropped`). Not collective.
struct Slice {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t step = 1;
  bool dropped = false;
  bool operator==(const Slice&) const = default;
};

/// Returns slices that select all elements of a shape. Not collective.
std::vector<Slice> whole(c10::IntArrayRef shape);

/// Parses PyTorch's slicing: "0:100, :, 2:9:3, -1", "..., 5". Missing dims are selected whole, negative numbers count
/// from the end, and slices beyond the end are clipped as in PyTorch. `what` names the sliced object in errors. Throws
/// ValueError for other text, more parts than dims, an index out of range and a step below 1. Not collective.
std::vector<Slice> parse_slices(const std::string& text, c10::IntArrayRef shape, const std::string& what);

/// Returns the shape of the selection: the counts of the dims that are not dropped. Not collective.
std::vector<int64_t> sliced_shape(const std::vector<Slice>& slices);

/// Returns slices of slices: `inner` has one entry per dim that `outer` does not drop. Not collective.
std::vector<Slice> compose(const std::vector<Slice>& outer, const std::vector<Slice>& inner);

}  // namespace moonhalo::io
