// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "moonhalo/engine/launch/launch.h"
#include "moonhalo/scripting/program/commands.h"

namespace moonhalo::scripting {

void add_env_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("env", "The launcher found in the environment, and why");
  command->callback([&action] {
    action = [] {
      std::string text = describe(detect_launch());
      if (!text.ends_with('\n')) text += '\n';
      std::fputs(text.c_str(), stdout);
      return 0;
    };
  });
}

}  // namespace moonhalo::scripting
