// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/rank_board.h"
#include "moonhalo/scripting/program/repl.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

void add_repl_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("repl", "Type Lua; every rank runs every line");
  const auto options = std::make_shared<SessionOptions>();
  options->backend = "threads";
  add_ranks_option(*command, options->ranks, "Number of thread ranks");
  command->add_option("--device", options->device, "cpu (default) or cuda");
  command->callback([options, &action] {
    action = [options] {
      RankBoard board(std::max(1, options->ranks));
      return run_session(*options, [&](lua_State* lua) { run_repl(lua, board); });
    };
  });
}

}  // namespace moonhalo::scripting
