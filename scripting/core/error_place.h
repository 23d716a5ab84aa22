// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <optional>
#include <string>

namespace moonhalo::scripting {

/// "\n  in    blocks.0.fc (Linear) of Net": the module whose forward is running and its path from the module that the
/// script called; "" outside of modules. Reads the frames of the stack, so it costs nothing until an error asks.
std::string module_place(lua_State* lua);

/// The path alone: "blocks.0.fc", "" in the module that the script called; nothing outside of modules. Within an
/// exported program it goes on to the program's own module (scripting_context.h).
std::optional<std::string> module_path(lua_State* lua);

/// Lets go of the modules that were kept while a recorder ran.
void forget_recorded_modules(lua_State* lua);

/// A message handler: gives a string the script's line where it has one of Moonhalo's own Lua files, the running
/// module, and a remedy for a method that was called with a dot. Strings without a position (`error(text, 0)`) and
/// other objects stay as they are.
int place_error(lua_State* lua);

/// The same for the last words of a script: strings without a position get the running module too.
std::string placed_message(lua_State* lua, std::string message);

/// pcall whose message has a place, as place_error gives it, and xpcall. Neither keeps os.exit (script_exit.h); both
/// give the text of a C++ exception that a host's function lets out.
int place_pcall(lua_State* lua);
int place_xpcall(lua_State* lua);
/// Calls what stands at 1 with the rest; a C++ exception of a function that has no guard becomes an error with its
/// text.
int call_with_guard(lua_State* lua);

/// Words an error value that is not a string: "x.lua:3: error value {code = 5}". Objects with __tostring describe
/// themselves.
std::string error_value_text(lua_State* lua, int index);

/// Calls into Lua code of Moonhalo, as C functions: these keep the frame of their caller in a tail call
/// (`return self.fc(x)`), which a Lua function would replace, and with it the script's line.
/// Upvalues: the function, how many arguments it takes (-1: any number), its name in the reference or nil.
int call_framed(lua_State* lua);
inline constexpr int kFramedLimit = 2, kFramedName = 3;  ///< the second and the third
/// module(...): its forward, or `call` where there are hooks. Upvalues: the class, the base class's `call`.
int call_module(lua_State* lua);

}  // namespace moonhalo::scripting
