// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lua.hpp>

#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {

/// Frees what Lua no longer uses. Collections that tensors start count their memory from here, so that what ran before
/// does not change when they come.
inline void collect_garbage(lua_State* lua) {
  lua_gc(lua, LUA_GCCOLLECT);
  lua_gc(lua, LUA_GCCOLLECT);
  state_data(lua)->unswept_bytes = 0;
}

}  // namespace moonhalo::scripting
