// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>

namespace moonhalo::scripting {

/// Notes that functions are methods of `type`, so that `opt.step()` is distinguished from a wrong argument.
void remember_methods(lua_State* lua, const luaL_Reg* methods, const std::string& type);
/// The same of the function at `index`.
void remember_method(lua_State* lua, int index, const std::string& type);
/// The type whose method the running C function (`frame`, from lua_getstack) is, or "".
std::string method_type(lua_State* lua, lua_Debug& frame);

/// "step: called without its Optimizer\n  fix   write a colon, not a dot: opt:step()": a method whose object is no
/// `type`.
std::string dot_call(lua_State* lua, const std::string& method, const std::string& type);

/// describe() says so of a tensor that was freed.
inline constexpr const char* kFreedTensor = "a freed tensor";
/// The error about it, and its remedy.
std::string freed_tensor();

}  // namespace moonhalo::scripting
