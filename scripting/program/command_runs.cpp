// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/lua_command.h"

namespace moonhalo::scripting {

namespace {

struct RunsWanted {
  std::string folder = "runs", sort, columns;
  std::vector<std::string> where;
  bool csv = false;
};

void push_runs_wanted(lua_State* lua, const RunsWanted& wanted) {
  lua_newtable(lua);
  set_field(lua, "folder", wanted.folder);
  set_field(lua, "columns", wanted.columns);
  set_field(lua, "where", wanted.where);
  set_field(lua, "sort", wanted.sort);
  set_field(lua, "csv", wanted.csv);
}

}  // namespace

void add_runs_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("runs", "Table of the runs of a folder: settings, metrics, status, time");
  const auto wanted = std::make_shared<RunsWanted>();
  command->add_option("folder", wanted->folder, "The folder of run folders (default: runs)")
      ->check(CLI::ExistingDirectory);
  command->add_option("--columns", wanted->columns,
                      "Settings and metrics to show, with commas between (default: settings that differ, all metrics)");
  command->add_option("--sort", wanted->sort, "The column to sort by, -NAME for the greatest first");
  command
      ->add_option("--where", wanted->where, "Only runs with this, as 'lr < 1e-3' or 'status = done'; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_flag("--csv", wanted->csv, "Print comma-separated values");
  command->callback([wanted, &action] {
    action = [wanted] {
      return run_lua_command("internal.runs_table", [&](lua_State* lua) { push_runs_wanted(lua, *wanted); });
    };
  });
}

}  // namespace moonhalo::scripting
