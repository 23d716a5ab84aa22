// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>

namespace moonhalo::scripting {

/// Runs `fn`; a C++ exception becomes a Lua error with the position of the nearest script line
/// (embedded Lua files are skipped) and without the C++ stack. Lua's own errors pass through.
int run_guarded(lua_State* lua, lua_CFunction fn);
template <lua_CFunction kFunction>
int guard(lua_State* lua) {
  return run_guarded(lua, kFunction);
}

/// lua_pcall with a traceback; an error is thrown as LuaError, so C++ code can call Lua functions.
void call_traced(lua_State* lua, int arguments, int results);

/// A message that begins with a file's name, of which Lua kept the last 56 bytes ("...ts/run.lua:3: "), with the whole
/// path where that is the file of `source` ("@path", as in lua_Debug).
std::string with_whole_path(std::string message, const char* source);

/// The state whose guarded function runs on this thread, noted only while a rank records (hooks_are_on()); null
/// otherwise.
lua_State* recorded_state();

/// "script.lua:12: " of the innermost script line that is running, "" when there is none.
std::string script_position(lua_State* lua);

}  // namespace moonhalo::scripting
