// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>

namespace moonhalo::scripting {

/// The tensor of a userdata at `index`, undefined after x:free(); null for other values.
at::Tensor* test_tensor(lua_State* lua, int index);

/// Metamethods for + - * / // % ^ unary- ~ & | << >>; each works with a number on either side.
const luaL_Reg* tensor_arithmetic();

}  // namespace moonhalo::scripting
