// SPDX-License-Identifier: Apache-2.0
// Signals are noted from the first call of mh.signalled until the run ends. Ranks are threads here.
// mpi/endings/signalled.lua.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>

#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_signals {
namespace {

using ::testing::HasSubstr;

class Signals : public ::testing::Test {
 protected:
  /// Runs these lines on two ranks; `send(NAME)` sends this process a signal.
  Result run_lines(const std::string& text) {
    write(text);
    return run({"run", script_, "--ranks", "2"});
  }

  void write(const std::string& text) const {
    std::ofstream(script_) << "local mh = require 'moonhalo'\n"
                              "local function send(name) assert(os.execute('kill -' .. name .. ' $PPID')) end\n"
                              "local function wait_for(name) repeat until mh.signalled() == name end\n"
                           << text;
  }

  static bool is_default(int number) {
    struct sigaction action {};
    EXPECT_EQ(sigaction(number, nullptr, &action), 0);
    return action.sa_handler == SIG_DFL;
  }

  const moonhalo::testing::Folder own_;
  const std::string script_ = own_.path() / "script.lua";
};

TEST_F(Signals, Y22_AreNotedUntilTheRunEnds) {
  const Result result = run_lines(
      "assert(mh.signalled() == nil)\n"
      "if mh.rank() == 1 then send('USR1') end wait_for('SIGUSR1')\n"
      "if mh.rank() == 0 then send('TERM') end wait_for('SIGTERM')\n"
      "mh.barrier() if mh.rank() == 1 then send('USR1') end\n"
      "for i = 1, 10 do assert(mh.signalled() == 'SIGTERM') end\n"
      "if mh.rank() == 0 then print('saved') end");

  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_EQ(result.out, "saved\n");
  EXPECT_TRUE(is_default(SIGTERM));
  EXPECT_TRUE(is_default(SIGUSR1));
  EXPECT_EQ(run_lines("assert(mh.signalled() == nil)").status, kDone);  // those of the run before are not this one's
}

TEST_F(Signals, Y22_AHandlerOfTheProgramIsNotDisplaced) {
  const auto before = std::signal(SIGUSR1, [](int) {});
  const Result result = run_lines("mh.signalled()");
  const bool kept = !is_default(SIGUSR1);
  std::signal(SIGUSR1, before);

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.err, HasSubstr("ranks 0-1: "));
  EXPECT_THAT(result.err,
              HasSubstr("script.lua:4: signalled: the program around this script handles SIGTERM or SIGUSR1"));
  EXPECT_TRUE(kept);
  EXPECT_TRUE(is_default(SIGTERM));
}

using SignalsDeathTest = Signals;

TEST_F(SignalsDeathTest, Y22_EndTheProcessOfAScriptThatDoesNotAsk) {
  for (const auto& [name, number] : {std::pair("USR1", SIGUSR1), std::pair("TERM", SIGTERM)}) {
    write("if mh.rank() == 0 then send('" + std::string(name) + "') end while true do mh.barrier() end");
    SessionOptions options;
    options.script = script_;
    options.ranks = 2;

    EXPECT_EXIT(run_session(options, [](lua_State* lua) { run_script(lua, 0); }), ::testing::KilledBySignal(number),
                "");
  }
}

}  // namespace
}  // namespace moonhalo::scripting::test_signals
