// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <ostream>

namespace moonhalo::scripting {

/// Writes a LuaLS definition file (`---@meta`): the fields of `mh` and of its modules, the
/// attributes and methods of tensors, and every public operator with its overloads. Made from the
/// tables that the state itself uses and from the dispatcher's schemas, so it cannot name what does
/// not exist.
void write_annotations(lua_State* lua, std::ostream& out);

}  // namespace moonhalo::scripting
