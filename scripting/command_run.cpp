// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "scripting/commands.h"
#include "scripting/session.h"

namespace moonhalo::scripting {

void add_run_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("run", "Run a Lua script on one or several ranks");
  const auto options = std::make_shared<SessionOptions>();
  command->add_option("script", options->script, "The Lua script")->required()->check(CLI::ExistingFile);
  add_rank_options(*command, *options);
  command->add_option("--set", options->settings, "A configuration value, key=value; may be repeated")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--config", options->config_file, "Configuration table, FILE.lua or FILE.json")
      ->check(CLI::ExistingFile);
  command->add_option("--log", options->log_file, "Append what mh.log is given, one JSON object a line");
  command->add_flag("--quiet", options->quiet, "No progress output");
  command->add_option("arguments", options->arguments, "After --: the script's own arguments, arg[1] ...");
  command->callback([options, &action] {
    action = [options] { return run_session(*options, [](lua_State* lua) { run_script(lua, 0); }); };
  });
}

}  // namespace moonhalo::scripting
