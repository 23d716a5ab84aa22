// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/objects.h"

#include <c10/util/Exception.h>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/limited_functions.h"
#include "moonhalo/scripting/core/methods.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting::detail {

namespace {

using Shared = std::shared_ptr<void>;

std::string registry_name(const char* type) { return std::string("moonhalo.") + type; }

int collect_object(lua_State* lua) {
  static_cast<Shared*>(lua_touserdata(lua, 1))->reset();
  return 0;
}

/// Names of the methods and getters of object_index.
std::vector<std::string> member_names(lua_State* lua) {
  std::vector<std::string> known;
  for (const int table : {1, 2}) {
    for (lua_pushnil(lua); lua_next(lua, lua_upvalueindex(table)); lua_pop(lua, 1)) {
      known.emplace_back(lua_tostring(lua, -2));
    }
  }
  return known;
}

/// Upvalues: methods, getters, the type's own __index or nil, the type's name. Its own one is called with the object,
/// the key, and "; did you mean 'read'?" where a method or getter is near, else "".
int object_index(lua_State* lua) {
  lua_pushvalue(lua, 2);
  if (lua_rawget(lua, lua_upvalueindex(1)) != LUA_TNIL) return 1;
  lua_pushvalue(lua, 2);
  if (lua_rawget(lua, lua_upvalueindex(2)) != LUA_TNIL) {
    lua_pushvalue(lua, 1);
    lua_call(lua, 1, 1);
    return 1;
  }
  if (!lua_isnil(lua, lua_upvalueindex(3))) {
    lua_pushvalue(lua, lua_upvalueindex(3));
    lua_pushvalue(lua, 1);
    lua_pushvalue(lua, 2);
    scripting::push(lua, lua_type(lua, 2) == LUA_TSTRING ? did_you_mean(lua_tostring(lua, 2), member_names(lua)) : "");
    lua_call(lua, 3, 1);
    return 1;
  }
  const std::string type = lua_tostring(lua, lua_upvalueindex(4));
  TORCH_CHECK_TYPE(lua_type(lua, 2) == LUA_TSTRING, type, ": names are strings, got ", describe(lua, 2));
  const std::vector<std::string> known = member_names(lua);
  const std::string name = lua_tostring(lua, 2);
  TORCH_CHECK_VALUE(false, type, ": no attribute or method '", name, "'", did_you_mean(name, known));
}

/// Upvalue: the type's name.
int object_new_index(lua_State* lua) {
  TORCH_CHECK_VALUE(false, lua_tostring(lua, lua_upvalueindex(1)), ": ", describe(lua, 2), " cannot be written",
                    "\n  fix   keep what is yours in a variable of your own");
}

void push_functions(lua_State* lua, const luaL_Reg* functions) {
  lua_newtable(lua);
  if (functions) luaL_setfuncs(lua, functions, 0);
}

}  // namespace

void define_object(lua_State* lua, const char* type, const luaL_Reg* methods, const luaL_Reg* getters,
                   const luaL_Reg* metamethods) {
  luaL_newmetatable(lua, registry_name(type).c_str());
  lua_pushcfunction(lua, collect_object);
  lua_setfield(lua, -2, "__gc");
  scripting::push(lua, type);
  lua_pushcclosure(lua, guard<object_new_index>, 1);
  lua_setfield(lua, -2, "__newindex");
  if (metamethods) luaL_setfuncs(lua, metamethods, 0);
  scripting::push(lua, type);
  lua_setfield(lua, -2, "__name");
  push_functions(lua, methods);
  remember_methods(lua, methods, type);
  limit_arguments(lua, -1, std::string(type) + ":");
  push_functions(lua, getters);
  lua_getfield(lua, -3, "__index");
  scripting::push(lua, type);
  lua_pushcclosure(lua, guard<object_index>, 4);
  lua_setfield(lua, -2, "__index");
  lua_pop(lua, 1);
}

void push_shared(lua_State* lua, const char* type, Shared object) {
  if (!object) {
    lua_pushnil(lua);
    return;
  }
  new (lua_newuserdatauv(lua, sizeof(Shared), 1)) Shared(std::move(object));
  luaL_getmetatable(lua, registry_name(type).c_str());
  TORCH_INTERNAL_ASSERT(lua_istable(lua, -1), type, " was not declared with define_object");
  lua_setmetatable(lua, -2);
}

Shared* test_shared(lua_State* lua, int index, const char* type) {
  auto* object = static_cast<Shared*>(luaL_testudata(lua, index, registry_name(type).c_str()));
  return object && *object ? object : nullptr;
}

}  // namespace moonhalo::scripting::detail
