// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include "moonhalo/scripting/core/errors.h"

namespace moonhalo::scripting {

/// os.exit on its way to the end of a script. In Lua it is an error with a value of its own, which pcall, xpcall and
/// coroutines of states made by new_state pass on: as in plain Lua nothing stops it.
class ScriptExit : public LuaError {
 public:
  explicit ScriptExit(int status) : LuaError("os.exit was called"), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

/// Ends a script from outside, for example after the budget of its call. It is passed on as ScriptExit is.
class ScriptStop : public LuaError {
 public:
  using LuaError::LuaError;
};

/// Pushes the error value that stands for `exit`.
void push_exit(lua_State* lua, const ScriptExit& exit);
void push_exit(lua_State* lua, const ScriptStop& stop);
bool is_exit(lua_State* lua, int index);
/// Throws the exception that a value that is_exit stands for.
[[noreturn]] void throw_exit(lua_State* lua);

/// Makes os.exit throw ScriptExit instead of ending the process, which has other ranks.
void replace_os_exit(lua_State* lua);
/// Makes coroutine.resume and .close pass on what is_exit, and those that are created have guards (call_with_guard).
void patch_coroutines(lua_State* lua);

}  // namespace moonhalo::scripting
