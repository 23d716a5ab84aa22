// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>
#include <vector>

namespace moonhalo::scripting {

/// Pushes the module table (what `require "moonhalo"` returns). Its unknown fields are looked up in
/// this order: an embedded file NAME.lua becomes the module mh.NAME; then operators; then an error
/// with the nearest names. Embedded files named prelude_*.lua run when a state opens, with the
/// module table as their argument.
void push_module(lua_State* lua);
/// Makes the module table, enters it in package.loaded and teaches `require` the embedded files.
/// Leaves it on the stack.
void open_module_table(lua_State* lua);
/// Runs every file of lua/prelude/ with the module table, which is on top of the stack and stays
/// there.
void run_preludes(lua_State* lua);
/// Sets what `mh.NAME` finds beside fields and embedded modules: the operators, which give these two functions at load.
/// `push` pushes the function of that name, and true; or nothing, and false.
struct OperatorFunctions {
  bool (*push)(lua_State* lua, const std::string& name, bool method);
  std::vector<std::string> (*names)();
};
void set_operator_functions(OperatorFunctions functions);
/// Pushes what `require "moonhalo.FILE"` returns, or that table's entry.
void push_embedded(lua_State* lua, const std::string& file);
void push_embedded(lua_State* lua, const std::string& file, const char* entry);
/// Lists what may follow `mh.`: fields, embedded modules, operators.
std::vector<std::string> module_names(lua_State* lua);

}  // namespace moonhalo::scripting
