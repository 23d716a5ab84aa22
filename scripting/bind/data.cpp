// SPDX-License-Identifier: Apache-2.0
// Binds for scripting/lua/data the parts of io that it needs.
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/io/find_files.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

/// _data.find_files(source): paths, by name.
int find_files(lua_State* lua) {
  push(lua, io::find_files(check_string(lua, 1)));
  return 1;
}

/// _data.check_same(op, settings, text): ValueError on every rank unless all give the same text. Collective.
int check_same(lua_State* lua) {
  const std::string op = check_string(lua, 1), settings = check_string(lua, 2);
  check_same_on_all_ranks(*context(lua).world, op.c_str(), settings.c_str(), check_string(lua, 3));
  return 0;
}

const luaL_Reg kFunctions[] = {
    {"find_files", guard<find_files>}, {"check_same", guard<check_same>}, {nullptr, nullptr}};

const Binding kBinding{"data", [](lua_State* lua) {
                         lua_newtable(lua);
                         add_functions(lua, kFunctions);
                         lua_setfield(lua, -2, "_data");
                       }};

}  // namespace

}  // namespace moonhalo::scripting
