// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/comm/diagnostics/process_exit.h"
#include "moonhalo/engine/comm/fake/root_facts.h"
#include "moonhalo/scripting/core/binding.h"

namespace CLI {
class App;
}

namespace moonhalo::scripting {

/// Exit statuses of the program.
enum ExitStatus : int { kDone = 0, kScriptFailed = 1, kWrongUsage = 2, kRankLost = kRankLostStatus };

/// The command line was right in form but cannot be carried out; exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Says how a script is started: the options of `moonhalo run` and its relatives.
struct SessionOptions {
  std::string script;
  std::vector<std::string> arguments;
  int ranks = 0;                          ///< 0: not given
  std::string backend;                    ///< empty: decided by the launcher's environment
  int fake_rank = -1;                     ///< of a dry run; -1: not given
  std::vector<int64_t> fake_ranks;        ///< of a dry run: these run at the same time, and print no costs
  std::string simulated;                  ///< the backend of a dry run's ranks, were they real; empty: not known
  std::shared_ptr<RootFacts> root_facts;  ///< that these ranks tell each other and those of later dry runs; may be null
  std::string device = "cpu";
  std::vector<std::string> settings;  ///< "key=value"
  std::vector<std::string> config_files;
  std::string log_file;
  std::string run_name;  ///< of the run folder; empty: none is made
  std::string resume;    ///< "latest" or the folder of a run; empty: none is resumed
  bool quiet = false;
  bool shows_searches = false;  ///< also where it is quiet
  bool fake_tensors = false;    ///< nothing is computed; large tensors have no memory
  std::optional<std::chrono::milliseconds>
      timeout;  ///< how long ranks wait for each other; empty: the environment's, or the default
};
void add_timeout_option(CLI::App& app, SessionOptions& options);
void add_rank_options(CLI::App& app, SessionOptions& options);
void add_ranks_option(CLI::App& app, int& ranks, const std::string& description);

/// Runs `body` once per rank, each with its own state, on this process's ranks (threads, or
/// the one rank that a launcher made this process). A failure on one rank stops the others within
/// five seconds; equal messages of several ranks are printed once, to stderr, with the source line
/// and a traceback. Returns the exit status.
int run_session(const SessionOptions& options, const std::function<void(lua_State*)>& body);

/// Loads and calls the script with its arguments, leaving its results on the stack. LuaError;
/// UsageError when the file cannot be read.
void run_script(lua_State* lua, int results);

/// Says why a file cannot be read, "" if it can.
std::string unreadable(const std::string& path);

/// True if this rank only noticed that another one had failed.
bool follows_from_another_rank(lua_State* lua, const std::exception& error);

/// Says on rank 0, after run_script, that no mh.config has asked for the settings, where some were `given`: a mistake
/// worth a word, but not worth the run.
void warn_of_unread_settings(lua_State* lua, const char* given);

}  // namespace moonhalo::scripting
