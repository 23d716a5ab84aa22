// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <lua.hpp>

#include <string>
#include <unordered_map>
#include <vector>

namespace moonhalo::scripting {

/// Arguments and results of TorchScript methods, which may be tuples and dicts too.
struct ScriptArguments {
  std::vector<c10::IValue> positional;
  std::unordered_map<std::string, c10::IValue> named;
};

/// The values from stack index `first` on, of the types in `schema`, whose first argument is self. A table with text
/// keys at the end gives arguments by name, unless the method takes a dict there. `where` begins errors.
ScriptArguments check_script_arguments(lua_State* lua, int first, const c10::FunctionSchema& schema,
                                       const std::string& where);
/// One value of `type`; TypeError if it has another type; `where` begins the message.
c10::IValue check_script_value(lua_State* lua, int index, const c10::TypePtr& type, const std::string& where);
/// The results of a Lua function, from stack index `first` on, as one value of `type`: several make a tuple.
c10::IValue check_script_result(lua_State* lua, int first, const c10::TypePtr& type, const std::string& where);

/// Pushes a value; a tuple becomes several (or one list, inside another value). Returns how many. `inside`: the value
/// goes back to the program, so that lists, dicts and objects stay what they are: an object of type ScriptValue.
int push_script_value(lua_State* lua, const c10::IValue& value, bool inside);

}  // namespace moonhalo::scripting
