// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/core/modules.h"

#include <c10/util/Exception.h>

#include <string_view>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/scripting/core/calls.h"
#include "moonhalo/scripting/core/errors.h"
#include "moonhalo/scripting/core/limited_functions.h"
#include "moonhalo/scripting/core/lua_sources.h"
#include "moonhalo/scripting/core/python_names.h"
#include "moonhalo/scripting/core/state.h"
#include "moonhalo/scripting/core/values.h"

namespace moonhalo::scripting {

namespace {

constexpr std::string_view kPrefix = "moonhalo.";
constexpr std::string_view kPrelude = "prelude.";
const char kModuleKey = 0;

OperatorFunctions& operator_functions() {
  static OperatorFunctions functions{};
  return functions;
}

std::optional<std::string_view> embedded_source(std::string_view name) {
  for (const auto& [known, text] : lua_sources()) {
    if (known == name && !name.starts_with(kPrelude)) return text;
  }
  return std::nullopt;
}

void load_embedded(lua_State* lua, std::string_view name, std::string_view text) {
  const std::string chunk = "=moonhalo." + std::string(name);
  if (luaL_loadbufferx(lua, text.data(), text.size(), chunk.c_str(), "t") != LUA_OK) {
    const std::string message = lua_tostring(lua, -1);
    lua_pop(lua, 1);
    throw LuaError(message);
  }
}

/// Files in the folders of lua/ are not fields of `mh`.
bool is_public(std::string_view name) { return name.find('.') == std::string_view::npos; }

/// Makes what an embedded file returned, on top of the stack, refuse surplus arguments.
void limit_embedded(lua_State* lua, const std::string& name) {
  lua_newtable(lua);
  lua_pushvalue(lua, -2);
  lua_setfield(lua, -2, name.c_str());
  limit_arguments(lua, -1, "mh.");
  lua_getfield(lua, -1, name.c_str());
  lua_replace(lua, -3);
  lua_pop(lua, 1);
}

/// Upvalues: an embedded file, whose results are fields of `mh`, and its name.
int run_public(lua_State* lua) {
  const int arguments = lua_gettop(lua);
  lua_pushvalue(lua, lua_upvalueindex(1));
  lua_insert(lua, 1);
  lua_call(lua, arguments, 1);
  limit_embedded(lua, lua_tostring(lua, lua_upvalueindex(2)));
  return 1;
}

/// A searcher for `require`: moonhalo.nn.conv is the embedded file lua/nn/conv.lua.
int search_embedded(lua_State* lua) {
  const std::string name = check_string(lua, 1);
  if (!name.starts_with(kPrefix)) return 0;
  const std::string file = name.substr(kPrefix.size());
  const std::optional<std::string_view> text = embedded_source(file);
  if (!text) {
    push(lua, "no embedded file '" + file + ".lua'");
    return 1;
  }
  load_embedded(lua, file, *text);
  if (is_public(file)) {
    push(lua, file);
    lua_pushcclosure(lua, run_public, 2);
  }
  push(lua, file);
  return 2;
}

/// mh[key] for a key that the table does not hold: a module, an operator, or an error.
int module_index(lua_State* lua) {
  TORCH_CHECK_TYPE(lua_type(lua, 2) == LUA_TSTRING, "mh: names are strings, got ", describe(lua, 2));
  const std::string name = lua_tostring(lua, 2);
  if (is_public(name) && embedded_source(name)) {
    push_embedded(lua, name);
  } else if (!operator_functions().push(lua, name, false)) {
    TORCH_CHECK_VALUE(false, "mh: no function or operator '", name, "'", did_you_mean(name, module_names(lua)),
                      python_name_hint(name));
  }
  lua_pushvalue(lua, 2);
  lua_pushvalue(lua, -2);
  lua_rawset(lua, 1);
  return 1;
}

}  // namespace

void push_embedded(lua_State* lua, const std::string& file) {
  lua_getglobal(lua, "require");
  push(lua, std::string(kPrefix) + file);
  lua_call(lua, 1, 1);
}

void push_embedded(lua_State* lua, const std::string& file, const char* entry) {
  push_embedded(lua, file);
  lua_getfield(lua, -1, entry);
  lua_remove(lua, -2);
}

void set_operator_functions(OperatorFunctions functions) { operator_functions() = functions; }

std::vector<std::string> module_names(lua_State* lua) {
  std::vector<std::string> names = operator_functions().names();
  for (const auto& [name, text] : lua_sources()) {
    if (is_public(name)) names.emplace_back(name);
  }
  push_module(lua);
  for (lua_pushnil(lua); lua_next(lua, -2); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) == LUA_TSTRING) names.emplace_back(lua_tostring(lua, -2));
  }
  lua_pop(lua, 1);
  return names;
}

void push_module(lua_State* lua) { push_registry_table(lua, &kModuleKey); }

void open_module_table(lua_State* lua) {
  push_module(lua);
  lua_createtable(lua, 0, 2);
  lua_pushcfunction(lua, guard<module_index>);
  lua_setfield(lua, -2, "__index");
  set_field(lua, "__name", "moonhalo");
  lua_setmetatable(lua, -2);

  luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
  lua_pushvalue(lua, -2);
  lua_setfield(lua, -2, "moonhalo");
  lua_pop(lua, 1);

  lua_getglobal(lua, "package");
  TORCH_CHECK_VALUE(lua_istable(lua, -1), "moonhalo: the Lua state has no standard library 'package'",
                    "\n  fix   call luaL_openlibs(lua) before open_moonhalo(lua)");
  lua_getfield(lua, -1, "searchers");
  // Right behind package.preload: no file can take the place of an embedded one, and none is looked for.
  for (auto last = static_cast<lua_Integer>(lua_rawlen(lua, -1)); last >= 2; --last) {
    lua_rawgeti(lua, -1, last);
    lua_rawseti(lua, -2, last + 1);
  }
  lua_pushcfunction(lua, guard<search_embedded>);
  lua_rawseti(lua, -2, 2);
  lua_pop(lua, 2);
}

void run_preludes(lua_State* lua) {
  for (const auto& [name, text] : lua_sources()) {
    if (!name.starts_with(kPrelude)) continue;
    load_embedded(lua, name, text);
    lua_pushvalue(lua, -2);
    call_traced(lua, 1, 0);
  }
}

}  // namespace moonhalo::scripting
