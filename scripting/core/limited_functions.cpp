// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/limited_functions.h"

#include "moonhalo/scripting/core/argument_counts.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/error_place.h"
#include "moonhalo/scripting/core/methods.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {
namespace {

// Upvalues of call_counted
constexpr int kFunction = 1, kMost = 2, kCall = 3;

int refuse_counted(lua_State* lua) {
  const auto& call = *static_cast<const KnownCall*>(lua_touserdata(lua, lua_upvalueindex(kCall)));
  const size_t at = call.name.find_last_of(".:");
  refuse_surplus(lua, call.most, std::string(call.name.substr(at + 1)), call.name[at] == ':', call.text);
}

/// A function of C++ that refuses surplus arguments.
int call_counted(lua_State* lua) {
  const auto most = static_cast<int>(lua_tointeger(lua, lua_upvalueindex(kMost)));
  if (lua_gettop(lua) > most && has_surplus(lua, most)) [[unlikely]]
    return guard<refuse_counted>(lua);
  return lua_tocfunction(lua, lua_upvalueindex(kFunction))(lua);
}

bool has_upvalues(lua_State* lua) {
  if (lua_getupvalue(lua, -1, 1) == nullptr) return false;
  lua_pop(lua, 1);
  return true;
}

/// Replaces the function of C++ on top of the stack.
void count_arguments(lua_State* lua, const KnownCall& call) {
  const size_t colon = call.name.find(':');
  const std::string type = colon == std::string_view::npos ? "" : std::string(call.name.substr(0, colon));
  if (call.in_lua && !type.empty()) return;  // this is the part in C++ of an object of Lua that has its name
  lua_pushinteger(lua, call.most);
  lua_pushlightuserdata(lua, const_cast<KnownCall*>(&call));
  lua_pushcclosure(lua, call_counted, 3);
  if (!type.empty()) remember_method(lua, -1, type);
}

/// The framed function on top of the stack takes as many arguments as the reference says if it takes any number.
void limit_framed(lua_State* lua, const KnownCall& call) {
  push(lua, call.name);
  lua_setupvalue(lua, -2, kFramedName);
  lua_getupvalue(lua, -1, kFramedLimit);
  const bool any = lua_tointeger(lua, -1) < 0;
  lua_pop(lua, 1);
  if (!any) return;
  lua_pushinteger(lua, call.most);
  lua_setupvalue(lua, -2, kFramedLimit);
}

void limit_function(lua_State* lua, const KnownCall& call) {
  if (!lua_iscfunction(lua, -1)) {
    push_parameter_count(lua, -1);
    lua_pushnil(lua);
    lua_pushcclosure(lua, call_framed, 3);
  } else if (!has_upvalues(lua)) {
    count_arguments(lua, call);
    return;
  }
  if (lua_tocfunction(lua, -1) == call_framed) limit_framed(lua, call);
}

}  // namespace

void limit_arguments(lua_State* lua, int index, const std::string& prefix) {
  const int table = lua_absindex(lua, index);
  luaL_checkstack(lua, 8, "limit_arguments");
  for (lua_pushnil(lua); lua_next(lua, table); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) != LUA_TSTRING) continue;
    const std::string name = prefix + lua_tostring(lua, -2);
    if (lua_istable(lua, -1) && is_call_prefix(name + ".")) {
      limit_arguments(lua, -1, name + ".");
    } else if (const KnownCall* const call = find_call(name); call != nullptr && lua_isfunction(lua, -1)) {
      lua_pushvalue(lua, -2);
      lua_pushvalue(lua, -2);
      limit_function(lua, *call);
      lua_rawset(lua, table);
    }
  }
}

}  // namespace moonhalo::scripting
