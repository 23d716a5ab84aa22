// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include <memory>

#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {

/// Makes `require "moonhalo"` (and moonhalo.nn, moonhalo.optim, ...) work in a state that has the
/// standard libraries. Any C++ program may call it. `world` null means a world of one.
void open_moonhalo(lua_State* lua, Context context = {});
/// A state with the standard libraries and moonhalo, closed by the deleter; the script's folder is on package.path, and
/// no folder that depends on the current one on package.cpath.
std::unique_ptr<lua_State, void (*)(lua_State*)> new_state(Context context = {});

}  // namespace moonhalo::scripting
