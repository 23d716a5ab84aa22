// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/strict_globals.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/python_names.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

/// Names of Lua 5.1 to 5.5 and LuaJIT: `local unpack = unpack or table.unpack` is how libraries serve several of them.
constexpr std::string_view kOtherLuas[] = {"bit",    "bit32",    "gcinfo",  "getfenv", "jit",    "loadstring",
                                           "module", "newproxy", "package", "setfenv", "unpack", "utf8"};

/// Local variables and upvalues of the function that runs at `level`.
void add_locals(lua_State* lua, int level, std::vector<std::string>& names) {
  lua_Debug frame;
  if (!lua_getstack(lua, level, &frame)) return;
  const char* name = nullptr;
  for (int i = 1; (name = lua_getlocal(lua, &frame, i)); ++i) {
    if (*name != '(') names.emplace_back(name);
    lua_pop(lua, 1);
  }
  lua_getinfo(lua, "f", &frame);
  for (int i = 1; (name = lua_getupvalue(lua, -1, i)); ++i) {
    names.emplace_back(name);
    lua_pop(lua, 1);
  }
  lua_pop(lua, 1);
}

/// Chunks that come from a file elsewhere than the script: libraries that were installed.
bool is_foreign(lua_State* lua, const char* source) {
  if (*source != '@') return false;
  const std::filesystem::path file(source + 1);
  if (file.is_relative()) return false;
  const std::filesystem::path folder = std::filesystem::absolute(context(lua).script).parent_path();
  return std::mismatch(folder.begin(), folder.end(), file.begin(), file.end()).first != folder.end();
}

/// Upvalue: the names that were ever assigned.
int undefined_global(lua_State* lua) {
  lua_pushvalue(lua, 2);
  if (lua_type(lua, 2) != LUA_TSTRING || lua_rawget(lua, lua_upvalueindex(1)) != LUA_TNIL) return 0;
  const std::string name = lua_tostring(lua, 2);
  lua_Debug frame;
  const bool known = lua_getstack(lua, 1, &frame) && lua_getinfo(lua, "S", &frame);
  const bool from_c = !known || *frame.what == 'C';  // lua_getglobal: a program's question, not a slip
  if (from_c || is_foreign(lua, frame.source)) return 0;
  if (std::find(std::begin(kOtherLuas), std::end(kOtherLuas), name) != std::end(kOtherLuas)) return 0;
  std::vector<std::string> names;
  add_locals(lua, 1, names);
  for (lua_pushnil(lua); lua_next(lua, 1); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) == LUA_TSTRING) names.emplace_back(lua_tostring(lua, -2));
  }
  TORCH_CHECK_VALUE(name != "self", "no variable 'self'\n  have  a function without a colon in its name",
                    "\n  fix   write function Class:method(...), which has self, for function Class.method(...)");
  TORCH_CHECK_VALUE(name != "mh", "no variable 'mh'\n  fix   begin the script with local mh = require \"moonhalo\"");
  const std::string python = python_word_hint(name);
  TORCH_CHECK_VALUE(python.empty(), "no variable '", name, "'", python);
  TORCH_CHECK_VALUE(false, "no variable '", name, "'", did_you_mean(name, names),
                    "\n  have  a global that nothing was assigned to",
                    "\n  fix   assign it first (nil will do), or test for it with rawget(_G, \"", name, "\")");
}

/// Upvalue: the names that were ever assigned.
int define_global(lua_State* lua) {
  lua_pushvalue(lua, 2);
  push(lua, true);
  lua_rawset(lua, lua_upvalueindex(1));
  lua_rawset(lua, 1);
  return 0;
}

}  // namespace

void forbid_undefined_globals(lua_State* lua) {
  lua_pushglobaltable(lua);
  const bool has_metatable = lua_getmetatable(lua, -1) != 0;
  TORCH_CHECK_VALUE(!has_metatable, "forbid_undefined_globals: _G has a metatable already");
  lua_createtable(lua, 0, 2);
  lua_newtable(lua);
  lua_pushvalue(lua, -1);
  lua_pushcclosure(lua, guard<undefined_global>, 1);
  lua_setfield(lua, -3, "__index");
  lua_pushcclosure(lua, guard<define_global>, 1);
  lua_setfield(lua, -2, "__newindex");
  lua_setmetatable(lua, -2);
  lua_pop(lua, 1);
}

}  // namespace moonhalo::scripting
