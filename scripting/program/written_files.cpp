// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/written_files.h"

#include <c10/util/Exception.h>

#include <filesystem>

#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// Upvalues: Lua's io.open, the WrittenFiles.
int open_file(lua_State* lua) {
  const std::string path = luaL_optstring(lua, 1, ""), mode = luaL_optstring(lua, 2, "r");
  const int results = lua_tocfunction(lua, lua_upvalueindex(1))(lua);
  const bool opened = lua_type(lua, -results) == LUA_TUSERDATA;
  if (opened && mode.starts_with('w')) {
    static_cast<WrittenFiles*>(lua_touserdata(lua, lua_upvalueindex(2)))->add(path, context(lua).rank());
  }
  return results;
}

}  // namespace

void WrittenFiles::add(const std::string& path, int rank) {
  std::error_code error;
  const auto whole = std::filesystem::canonical(path, error);
  if (error || !std::filesystem::is_regular_file(whole, error)) return;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    first = ranks_.emplace(whole.string(), rank).first->second == rank;
  }
  if (first) return;
  TORCH_WARN("io.open: several ranks write '", path,
             "', each over what another has written\n  fix   let one rank write, if mh.rank() == 0 then ... end; "
             "mh.log{...} does so; or give "
             "each rank a name of its own, with mh.rank() in it");
}

void WrittenFiles::watch(lua_State* lua) {
  if (lua_getglobal(lua, "io") == LUA_TTABLE) {
    lua_getfield(lua, -1, "open");
    lua_pushlightuserdata(lua, this);
    lua_pushcclosure(lua, guard<open_file>, 2);
    lua_setfield(lua, -2, "open");
  }
  lua_pop(lua, 1);
}

}  // namespace moonhalo::scripting
