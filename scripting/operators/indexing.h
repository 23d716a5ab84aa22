// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>

#include <vector>

#include "moonhalo/engine/base/slice_text.h"

namespace moonhalo::scripting {

/// One part of an index: of a string, or a tensor of indices or of booleans.
struct IndexPart : SlicePart {
  at::Tensor tensor;  ///< defined: counts instead
};

/// Any key that a tensor may be indexed with: an integer, an index string, a tensor, or a list of
/// these.
std::vector<IndexPart> read_index(lua_State* lua, int index);

/// x[parts]: a view for integers and slices, a copy where a tensor selects.
at::Tensor get_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts);
/// x[parts] = value, in place; `value` is broadcast.
void set_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts, const at::Tensor& value);
void set_index(const at::Tensor& tensor, const std::vector<IndexPart>& parts, const at::Scalar& value);

}  // namespace moonhalo::scripting
