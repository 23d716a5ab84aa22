// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/local_rank.h"

#include "moonhalo/engine/comm/rank_device.h"
#include "moonhalo/scripting/core/state.h"

namespace moonhalo::scripting {
namespace {

const char kLocalRankKey = 0;

}  // namespace

void find_local_rank(lua_State* lua) {
  const Context& run = context(lua);
  lua_pushinteger(lua, run.ranks_are_threads ? run.rank() : moonhalo::local_rank(*run.world));
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kLocalRankKey);
}

int64_t local_rank(lua_State* lua) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kLocalRankKey) == LUA_TNIL) {
    lua_pop(lua, 1);
    find_local_rank(lua);
    lua_rawgetp(lua, LUA_REGISTRYINDEX, &kLocalRankKey);
  }
  const int64_t number = lua_tointeger(lua, -1);
  lua_pop(lua, 1);
  return number;
}

}  // namespace moonhalo::scripting
