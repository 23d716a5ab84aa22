// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace moonhalo::scripting {

/// The work of the chosen subcommand, done once the command line was read; returns the exit status.
using Action = std::function<int()>;

/// Each adds one subcommand to `app` (command_<name>.cpp), which sets `action` when it is chosen. `after_dashes`: the
/// words after "--", which are the script's own.
void add_run_command(CLI::App& app, Action& action, const std::vector<std::string>& after_dashes);
void add_test_command(CLI::App& app, Action& action);
void add_repl_command(CLI::App& app, Action& action);
void add_info_command(CLI::App& app, Action& action);
void add_inspect_command(CLI::App& app, Action& action);
void add_ops_command(CLI::App& app, Action& action);
void add_env_command(CLI::App& app, Action& action);
void add_plan_command(CLI::App& app, Action& action, const std::vector<std::string>& after_dashes);
void add_calibrate_command(CLI::App& app, Action& action);
void add_profile_command(CLI::App& app, Action& action);
void add_merge_command(CLI::App& app, Action& action);
void add_check_command(CLI::App& app, Action& action);
void add_runs_command(CLI::App& app, Action& action);
void add_sweep_command(CLI::App& app, Action& action);
void add_report_command(CLI::App& app, Action& action);
void add_help_command(CLI::App& app, Action& action);

/// The exit status of `action`, whose error is printed.
int status_of(const Action& action);

/// The whole program: reads the command line, acts, prints errors to stderr. Exit statuses: see
/// ExitStatus.
int command_line(int argc, char** argv);

}  // namespace moonhalo::scripting
