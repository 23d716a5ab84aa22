// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/output.h"
#include "moonhalo/scripting/program/session.h"
#include "moonhalo/scripting/program/wrong_words.h"
#include "moonhalo/version.h"

namespace moonhalo::scripting {

namespace {

int complain(const std::exception& error, int status) {
  std::fflush(stdout);
  std::fprintf(stderr, "moonhalo: %s\n", plain_message(error).c_str());
  return status;
}

/// The words after the program's name. A file as the first one is the script of `run`.
std::vector<std::string> words_of(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && !is_subcommand(app, words.front()) && std::filesystem::is_regular_file(words.front()))
    words.insert(words.begin(), "run");
  return words;
}

/// `--run` and `--resume` may stand before the script, which is then not their value.
void keep_script(std::vector<std::string>& words) {
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (!std::filesystem::is_regular_file(words[i + 1])) continue;
    if (words[i] == "--run") words[i] = "--run=" + std::filesystem::path(words[i + 1]).stem().string();
    if (words[i] == "--resume") words[i] = "--resume=latest";
  }
}

int act(int argc, char** argv) {
  CLI::App app("Domain-parallel tensors on LibTorch, scripted from Lua", "moonhalo");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("moonhalo ") + kVersion, "Print the version and end");
  app.footer(
      "moonhalo SCRIPT ... is short for moonhalo run SCRIPT ...\n\n"
      "Environment:\n"
      "  MOONHALO_TIMEOUT_S        longest silence of a rank in seconds before the others give up (600); also run "
      "--timeout\n"
      "  MOONHALO_CHECK_CALLS      0: processes do not compare their calls (mh.check_calls)\n"
      "  MOONHALO_MPI_CHUNK_BYTES  larger messages are sent in pieces (1073741824)\n"
      "  OMP_NUM_THREADS           threads of each process");
  Action action;
  std::vector<std::string> after_dashes;
  add_run_command(app, action, after_dashes);
  add_plan_command(app, action, after_dashes);
  for (void (*add)(CLI::App&, Action&) :
       {add_test_command, add_repl_command, add_info_command, add_inspect_command, add_ops_command, add_env_command,
        add_calibrate_command, add_profile_command, add_merge_command, add_check_command, add_runs_command,
        add_sweep_command, add_report_command, add_help_command}) {
    add(app, action);
  }
  std::vector<std::string> words = words_of(app, argc, argv);
  // CLI11 does not tell whether a word stood before or after "--", and only `run` and `plan` take words after it.
  const auto dashes = std::find(words.begin(), words.end(), "--");
  if (dashes != words.end() && (words.front() == "run" || words.front() == "plan")) {
    after_dashes.assign(dashes + 1, words.end());
    words.erase(dashes, words.end());
  }
  if (words.size() > 1 && words.front() == "run") keep_script(words);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    const std::string wrong = error.get_exit_code() == 0 ? "" : wrong_word(app, words);
    if (!wrong.empty()) return complain(UsageError(wrong), kWrongUsage);
    return app.exit(error) == 0 ? kDone : kWrongUsage;
  }
  return status_of(action);
}

}  // namespace

int status_of(const Action& action) {
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

int command_line(int argc, char** argv) { return checked_output(act(argc, argv)); }

}  // namespace moonhalo::scripting
