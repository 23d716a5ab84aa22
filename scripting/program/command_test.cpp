// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "moonhalo/scripting/core/strict_globals.h"
#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/rank_board.h"
#include "moonhalo/scripting/program/report.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

struct Tally {
  int passed = 0;
  int failed = 0;
  bool mine = true;  // to print: false on all processes of a launcher but one
};

std::vector<std::string> test_names(lua_State* lua, int table) {
  std::vector<std::string> names;
  for (lua_pushnil(lua); lua_next(lua, table); lua_pop(lua, 1)) {
    if (lua_type(lua, -2) != LUA_TSTRING || !lua_isfunction(lua, -1)) continue;
    const std::string name = lua_tostring(lua, -2);
    if (name.starts_with("test_")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The failure's text, empty when the test passed.
std::string run_test(lua_State* lua, int table, const std::string& name) {
  lua_getfield(lua, table, name.c_str());
  try {
    call_traced(lua, 0, 0);
  } catch (const LuaError& error) {
    ErrorReport report;
    report.add(0, error, false);
    return report.text(1);
  }
  return "";
}

std::string indented(const std::string& text) {
  std::string result = "    ";
  for (const char c : text) {
    result += c;
    if (c == '\n') result += "    ";
  }
  return result.substr(0, result.find_last_not_of(" \n") + 1);
}

void print_passed(const std::string& name, std::chrono::steady_clock::time_point start) {
  const auto taken = std::chrono::steady_clock::now() - start;
  std::printf("ok     %s (%.0f ms)\n", name.c_str(), std::chrono::duration<double, std::milli>(taken).count());
  std::fflush(stdout);
}

/// For a process among others: they cannot be called back from a collective, so the first failure ends the run on all.
void run_test_among_processes(lua_State* lua, int table, const std::string& name, Tally& tally) {
  const auto start = std::chrono::steady_clock::now();
  Context& run = context(lua);
  lua_getfield(lua, table, name.c_str());
  try {
    call_traced(lua, 0, 0);
  } catch (const LuaError&) {
    std::fprintf(stderr, "FAILED %s on rank %d\n", name.c_str(), static_cast<int>(run.rank()));
    throw;
  }
  run.world->barrier();
  if (tally.mine) print_passed(name, start);
  ++tally.passed;
}

/// After a failure in which ranks made different calls, they are no longer at the same place.
void print_skipped(const std::vector<std::string>& names, const std::string& last) {
  const auto first = std::upper_bound(names.begin(), names.end(), last);
  if (first == names.end()) return;
  std::printf("not run, since the ranks no longer agree after %s:", last.c_str());
  for (auto name = first; name != names.end(); ++name) std::printf("%s %s", name == first ? "" : ",", name->c_str());
  std::printf("\n");
  std::fflush(stdout);
}

/// On every rank; rank 0 prints and counts.
void run_tests(lua_State* lua, RankBoard& board, Tally& tally) {
  forbid_undefined_globals(lua);
  run_script(lua, 1);
  if (!lua_istable(lua, -1)) throw UsageError("test: the script returns no table of test_* functions");
  const int table = lua_gettop(lua);
  Context& run = context(lua);
  const std::vector<std::string> names = test_names(lua, table);
  if (names.empty()) throw UsageError("test: the table that the script returns has no test_* functions");
  const bool processes = !run.ranks_are_threads && run.world->size() > 1;
  if (processes) tally.mine = run.rank() == 0;
  for (const std::string& name : names) {
    if (processes) {
      run_test_among_processes(lua, table, name, tally);
      continue;
    }
    const auto start = std::chrono::steady_clock::now();
    const std::string failure = run_test(lua, table, name);
    const RankBoard::Outcome outcome = board.arrive(*run.world, failure);
    if (run.rank() == 0) {
      const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      std::printf("%s %s (%.0f ms)\n", outcome.failure.empty() ? "ok    " : "FAILED", name.c_str(), ms);
      if (!outcome.failure.empty()) std::printf("%s\n", indented(outcome.failure).c_str());
      std::fflush(stdout);
      ++(outcome.failure.empty() ? tally.passed : tally.failed);
    }
    if (outcome.aborted) {
      if (run.rank() == 0) print_skipped(names, name);
      break;
    }
  }
}

int test(const SessionOptions& options) {
  Tally tally;
  RankBoard board(std::max(1, options.ranks));
  const int status = run_session(options, [&](lua_State* lua) { run_tests(lua, board, tally); });
  if (tally.mine) std::printf("%d passed, %d failed\n", tally.passed, tally.failed);
  return status != kDone ? status : tally.failed > 0 ? kScriptFailed : kDone;
}

}  // namespace

void add_test_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("test", "Run the test_* functions of the table that a script returns");
  const auto options = std::make_shared<SessionOptions>();
  command->add_option("script", options->script, "The Lua script")->required()->check(CLI::ExistingFile);
  add_ranks_option(
      *command, options->ranks,
      "Run on N thread ranks; a test fails when it fails on any. Under mpirun and the like the processes are "
      "the ranks, and the first failure ends the run");
  add_timeout_option(*command, *options);
  command->add_option("--device", options->device, "cpu (default) or cuda");
  command->callback([options, &action] { action = [options] { return test(*options); }; });
}

}  // namespace moonhalo::scripting
