// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>

namespace moonhalo::scripting {

/// Appends what was printed to output.txt of the run folder, if this rank writes one.
void copy_output(lua_State* lua, const std::string& text);

/// Makes or resumes the run folder of --run and --resume, if one of them is given. Collective.
void begin_run(lua_State* lua);
/// Writes the end of the run into its folder, if there is one: `error` is empty after a success. `follows`: it only
/// says that another rank failed, whose error is the one to write. Not collective.
void end_run(lua_State* lua, int status, const std::string& error, bool follows = false);

}  // namespace moonhalo::scripting
