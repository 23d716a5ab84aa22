// SPDX-License-Identifier: Apache-2.0
// math.random identically on all ranks; Lua alone seeds it in every state again.
#include "moonhalo/scripting/core/lua_random.h"

#include "moonhalo/engine/base/splitmix.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

const char kSeedFunctionKey = 0;
const char kEntropyKey = 0;

/// A new seed at each call, the same ones in every state that was given the same entropy.
uint64_t fresh_seed(lua_State* lua) {
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kEntropyKey);
  const uint64_t seed = splitmix64(static_cast<uint64_t>(lua_tointeger(lua, -1)));
  lua_pop(lua, 1);
  set_lua_entropy(lua, seed);
  return seed;
}

/// math.randomseed([n[, m]])
int randomseed(lua_State* lua) {
  if (lua_gettop(lua) == 0) push(lua, fresh_seed(lua));
  lua_rawgetp(lua, LUA_REGISTRYINDEX, &kSeedFunctionKey);
  lua_insert(lua, 1);
  lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
  return lua_gettop(lua);
}

void open_lua_random(lua_State* lua) {
  const int top = lua_gettop(lua);
  const bool opened = lua_rawgetp(lua, LUA_REGISTRYINDEX, &kSeedFunctionKey) != LUA_TNIL;
  if (!opened && lua_getglobal(lua, "math") == LUA_TTABLE && lua_getfield(lua, -1, "randomseed") == LUA_TFUNCTION) {
    lua_rawsetp(lua, LUA_REGISTRYINDEX, &kSeedFunctionKey);
    lua_pushcfunction(lua, guard<randomseed>);
    lua_setfield(lua, -2, "randomseed");
  }
  set_lua_entropy(lua, 0);
  seed_lua_random(lua, context(lua).seed());
  lua_settop(lua, top);
}

const Binding lua_random_binding{"lua_random", open_lua_random};

}  // namespace

void seed_lua_random(lua_State* lua, uint64_t seed) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kSeedFunctionKey) == LUA_TFUNCTION) {
    push(lua, seed);
    lua_call(lua, 1, 0);
  } else {
    lua_pop(lua, 1);  // a host's state without the library `math`
  }
}

void set_lua_entropy(lua_State* lua, uint64_t entropy) {
  push(lua, entropy);
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kEntropyKey);
}

}  // namespace moonhalo::scripting
