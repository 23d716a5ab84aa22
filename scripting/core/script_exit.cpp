// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/script_exit.h"

#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/error_place.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

const char kExitKey = 0;

/// os.exit([status]): true is 0, false is 1; of numbers the system keeps the lowest 8 bits.
int os_exit(lua_State* lua) {
  int status = 0;
  if (lua_isboolean(lua, 1)) {
    status = lua_toboolean(lua, 1) ? 0 : 1;
  } else if (!lua_isnoneornil(lua, 1)) {
    status = static_cast<int>(check_int(lua, 1) & 0xff);
  }
  throw ScriptExit(status);
}

/// Upvalue: a function that gives false and the error value where something failed.
int call_and_pass_exit(lua_State* lua) {
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, lua_gettop(lua) - 1, LUA_MULTRET);
  if (lua_gettop(lua) != 2 || lua_toboolean(lua, 1) || !is_exit(lua, 2)) return lua_gettop(lua);
  return lua_error(lua);
}

/// Upvalue: the body of a coroutine.
int body(lua_State* lua) {
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  return call_with_guard(lua);
}

/// Upvalue: coroutine.create or .wrap, whose bodies' C++ exceptions become errors with their text.
int make_coroutine(lua_State* lua) {
  luaL_checktype(lua, 1, LUA_TFUNCTION);
  lua_settop(lua, 1);
  lua_pushcclosure(lua, body, 1);
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, 1, 1);
  return 1;
}

}  // namespace

void push_exit(lua_State* lua, const ScriptExit& exit) {
  push(lua, exit.status());
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kExitKey);
  lua_pushlightuserdata(lua, const_cast<char*>(&kExitKey));
}

void push_exit(lua_State* lua, const ScriptStop& stop) {
  push(lua, std::string_view(stop.what()));
  lua_rawsetp(lua, LUA_REGISTRYINDEX, &kExitKey);
  lua_pushlightuserdata(lua, const_cast<char*>(&kExitKey));
}

bool is_exit(lua_State* lua, int index) {
  return lua_islightuserdata(lua, index) && lua_touserdata(lua, index) == &kExitKey;
}

void throw_exit(lua_State* lua) {
  if (lua_rawgetp(lua, LUA_REGISTRYINDEX, &kExitKey) == LUA_TSTRING) {
    const ScriptStop stop(lua_tostring(lua, -1));
    lua_pop(lua, 1);
    throw stop;
  }
  const int status = static_cast<int>(lua_tointeger(lua, -1));
  lua_pop(lua, 1);
  throw ScriptExit(status);
}

void replace_os_exit(lua_State* lua) {
  lua_getglobal(lua, "os");
  lua_pushcfunction(lua, guard<os_exit>);
  lua_setfield(lua, -2, "exit");
  lua_pop(lua, 1);
}

void patch_coroutines(lua_State* lua) {
  lua_getglobal(lua, "coroutine");
  const luaL_Reg functions[] = {{"resume", call_and_pass_exit},
                                {"close", call_and_pass_exit},
                                {"create", make_coroutine},
                                {"wrap", make_coroutine}};
  for (const auto& [name, function] : functions) {
    lua_getfield(lua, -1, name);
    lua_pushcclosure(lua, function, 1);
    lua_setfield(lua, -2, name);
  }
  lua_pop(lua, 1);
}

}  // namespace moonhalo::scripting
