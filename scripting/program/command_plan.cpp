// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

void add_plan_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("plan", "Cost report of a script (not available yet)");
  command->group("");  // not listed
  command->allow_extras();
  command->callback([&action] {
    action = []() -> int {
      throw UsageError(
          "plan: cost reports are not available yet\n  fix   `moonhalo run SCRIPT.lua --backend "
          "fake --ranks N` "
          "runs one rank of N and counts messages (mh.comm_stats())");
    };
  });
}

}  // namespace moonhalo::scripting
