// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>
#include <vector>

namespace moonhalo::scripting {

/// Makes the module table, enters it in package.loaded and teaches `require` the embedded files.
/// Leaves it on the stack.
void open_module_table(lua_State* lua);
/// Runs every embedded prelude_*.lua with the module table, which is on top of the stack and stays
/// there.
void run_preludes(lua_State* lua);
/// True for the chunk name of an embedded file: its lines mean nothing to a user.
bool is_embedded_chunk(const char* source);
/// What may follow `mh.`: fields, embedded modules, operators.
std::vector<std::string> module_names(lua_State* lua);

}  // namespace moonhalo::scripting
