// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

namespace moonhalo::scripting {

/// Put one at the foot of bind_<noun>.cpp: `open` runs once in every new state, in order of the
/// nouns, with the module table on top of the stack; it must leave the stack as it was. Records the
/// file so that `mh` needs no list to edit.
struct Binding {
  Binding(const char* noun, void (*open)(lua_State*));
};
/// Adds functions to the table on top of the stack.
void add_functions(lua_State* lua, const luaL_Reg* functions);

/// More attributes (called with the tensor at 1) and methods for tensors: `x.mesh`, `x:to_local()`.
/// These win over operators of the same name. Lua code adds methods by `function
/// mh.Tensor.name(self, ...)`.
void add_tensor_getters(lua_State* lua, const luaL_Reg* getters);
void add_tensor_methods(lua_State* lua, const luaL_Reg* methods);
/// The methods that tensors have besides operators, and their attributes.
void push_tensor_methods(lua_State* lua);
void push_tensor_getters(lua_State* lua);

/// Runs every Binding, with the module table on top of the stack.
void open_bindings(lua_State* lua);

}  // namespace moonhalo::scripting
