// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

void add_merge_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "merge", "Make one checkpoint of whole tensors, a file for each entry, of one in blocks or in parts");
  const auto from = std::make_shared<std::string>(), to = std::make_shared<std::string>();
  command->add_option("from", *from, "The checkpoint, with the blocks of all ranks")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("to", *to, "The checkpoint that is made")->required();
  command->callback([from, to, &action] {
    action = [from, to] {
      SessionOptions options;
      options.ranks = 1;
      options.backend = "threads";
      options.quiet = true;
      return run_session(options, [&](lua_State* lua) {
        luaL_getsubtable(lua, LUA_REGISTRYINDEX, LUA_LOADED_TABLE);
        lua_getfield(lua, -1, "moonhalo");
        lua_getfield(lua, -1, "checkpoint");
        lua_getfield(lua, -1, "merge");
        push(lua, *from);
        push(lua, *to);
        call_traced(lua, 2, 0);
      });
    };
  });
}

}  // namespace moonhalo::scripting
