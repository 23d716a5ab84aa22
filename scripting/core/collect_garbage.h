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

/// From here on tensors alone start collections, not how much memory Lua has: it has other little things in a dry run
/// than in a real one, and a tensor of the script's beginning, such as a whole field, would stay for longer in one of
/// them. A collection then begins by itself only when Lua has ten times its memory.
inline void collect_by_tensors_alone(lua_State* lua) { lua_gc(lua, LUA_GCINC, 1000, 0, 0); }

}  // namespace moonhalo::scripting
