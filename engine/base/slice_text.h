// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moonhalo {

/// One comma-separated part of an index: `3`, `2:5`, `::2`, `...`, `None` or `newaxis`.
struct SlicePart {
  enum Kind { kInteger, kSlice, kEllipsis, kNewAxis };
  Kind kind = kInteger;
  int64_t integer = 0;
  std::optional<int64_t> start = {}, stop = {}, step = {};
  bool operator==(const SlicePart&) const = default;
};

/// Reads "0:100, :, ::2, -1, ..., None". Integers have digits and perhaps a minus, steps are positive, "..." stands at
/// most once; spaces and tabs may stand around numbers. For any other text throws a ValueError that says
/// message(problem).
std::vector<SlicePart> parse_slice_text(std::string_view text,
                                        const std::function<std::string(const std::string& problem)>& message);

/// True if a string is meant as the above, rightly or wrongly, and not as a name.
bool looks_like_slices(std::string_view text);

}  // namespace moonhalo
