// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "scripting/commands.h"
#include "scripting/session.h"

namespace moonhalo::scripting {

void add_env_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("env", "The launcher found in the environment, and why");
  command->callback([&action] {
    action = []() -> int { throw UsageError("env: not available yet"); };
  });
}

}  // namespace moonhalo::scripting
