// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/lua_command.h"

namespace moonhalo::scripting {

void add_report_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("report", "Write one HTML page with the curves and settings of runs");
  struct Wanted {
    std::vector<std::string> runs;
    std::string output;
  };
  const auto wanted = std::make_shared<Wanted>();
  command->add_option("runs", wanted->runs, "Run folders, or folders of them")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--output", wanted->output, "The page (default: report.html in the first folder)");
  command->callback([wanted, &action] {
    action = [wanted] {
      return run_lua_command("internal.report", [&](lua_State* lua) {
        lua_newtable(lua);
        set_field(lua, "runs", wanted->runs);
        set_field(lua, "output", wanted->output);
      });
    };
  });
}

}  // namespace moonhalo::scripting
