// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

namespace moonhalo::scripting {

/// From now on a script that reads a global that was never assigned gets an error with the nearest name, among its
/// local variables too. `moonhalo run` and `moonhalo test` call it; a host may, after open_moonhalo. Assigning makes a
/// global, nil included; rawget(_G, "name") asks. Not for code of libraries outside the script's folder, and not for
/// names that other versions of Lua have (unpack, loadstring, ...), which libraries ask for. ValueError where _G has a
/// metatable.
void forbid_undefined_globals(lua_State* lua);

}  // namespace moonhalo::scripting
