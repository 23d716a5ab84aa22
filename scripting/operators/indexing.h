// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <optional>
#include <string_view>
#include <vector>

namespace moonhalo::scripting {

/// One comma-separated part of an index: `3`, `2:5`, `::2`, `...`, `None`, or a tensor of indices
/// or of booleans.
struct IndexPart {
  enum Kind { kInteger, kSlice, kEllipsis, kNewAxis, kTensor };
  Kind kind = kInteger;
  int64_t integer = 0;
  std::optional<int64_t> start, stop, step;
  at::Tensor tensor;
};

/// Whether a string key of a tensor is an index and not a name.
bool looks_like_index(std::string_view text);
/// Parses "0, :, 2:5, ..., None". ValueError pointing at the part that is wrong.
std::vector<IndexPart> parse_index(std::string_view text);
/// Any key that a tensor may be indexed with: an integer, an index string, a tensor, or a list of
/// these.
std::vector<IndexPart> read_index(lua_State* lua, int index);

/// x[parts]: a view for integers and slices, a copy where a tensor selects.
at::Tensor get_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts);
/// x[parts] = value, in place; `value` is broadcast.
void set_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts, const at::Tensor& value);
void set_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts, const at::Scalar& value);

}  // namespace moonhalo::scripting
