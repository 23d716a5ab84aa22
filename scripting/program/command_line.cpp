// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

int complain(const std::exception& error, int status) {
  std::fflush(stdout);
  std::fprintf(stderr, "moonhalo: %s\n", plain_message(error).c_str());
  return status;
}

int act(int argc, char** argv) {
  // CLI11 does not tell whether a word stood before or after "--", and only `run` takes words after it.
  const bool run = argc > 1 && argv[1] == std::string_view("run");
  char** const end = run ? std::find(argv, argv + argc, std::string_view("--")) : argv + argc;
  const std::vector<std::string> after_dashes(std::min(end + 1, argv + argc), argv + argc);
  CLI::App app("Domain-parallel tensors on LibTorch, scripted from Lua", "moonhalo");
  app.require_subcommand(1);
  app.footer(
      "Environment:\n"
      "  MOONHALO_TIMEOUT_S        longest silence of a rank in seconds before the others give up (600); also run "
      "--timeout\n"
      "  MOONHALO_CHECK_CALLS      0: processes do not compare their calls (mh.check_calls)\n"
      "  MOONHALO_MPI_CHUNK_BYTES  larger messages travel in pieces (1073741824)\n"
      "  OMP_NUM_THREADS           threads of each process");
  Action action;
  add_run_command(app, action, after_dashes);
  for (void (*add)(CLI::App&, Action&) :
       {add_test_command, add_repl_command, add_info_command, add_inspect_command, add_ops_command, add_env_command,
        add_plan_command, add_merge_command, add_check_command}) {
    add(app, action);
  }
  try {
    app.parse(static_cast<int>(end - argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kWrongUsage;
  }
  try {
    return action();
  } catch (const UsageError& error) {
    return complain(error, kWrongUsage);
  } catch (const CommError& error) {
    return complain(error, kRankLost);
  } catch (const std::exception& error) {
    return complain(error, kScriptFailed);
  }
}

}  // namespace

int command_line(int argc, char** argv) { return checked_output(act(argc, argv)); }

}  // namespace moonhalo::scripting
