// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <lua.hpp>

#include <optional>

namespace moonhalo::scripting {

/// Says how well a Lua value fits a schema type: 0 exactly, more the more it had to be bent, nothing
/// when it does not fit.
///
///   0  same kind (nil for an optional, dtype and device by name)     1  integer for float; number
///   for int[N] 2  integral float for int                                        3  number for
///   int[] 4  0-dim tensor for a number                                    16  number for Tensor
using Cost = std::optional<int>;

/// Converts the Lua value at `index` to what `argument` of a schema needs. numbers_as_tensors   whether a number
/// may stand for a tensor (as a wrapped number)
Cost from_lua(lua_State* lua, int index, const c10::Argument& argument, bool numbers_as_tensors, c10::IValue& out);

/// Pushes one result: tensors, numbers, booleans, strings, dtypes and devices by name, lists as Lua
/// lists, None as nil.
void push_value(lua_State* lua, const c10::IValue& value, const c10::Type& real_type);

}  // namespace moonhalo::scripting
