// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <string>

namespace moonhalo::scripting {

/// Makes the functions of the table at `index`, and of the tables in it that have entries in the reference, refuse
/// arguments beyond their entries (argument_counts.h). `prefix`: how the entries begin, "mh." or "Tensor:". Functions
/// that do so already stay.
void limit_arguments(lua_State* lua, int index, const std::string& prefix);

}  // namespace moonhalo::scripting
