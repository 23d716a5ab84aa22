// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/repl.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_command_line {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CommandLine : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path.string();
  }

  const moonhalo::testing::Folder own_;
  const std::filesystem::path& folder_ = own_.path();
};

TEST_F(CommandLine, RunPassesTheScriptItsArguments) {
  const std::string script = write("a.lua", "#!/usr/bin/env moonhalo\nprint(arg[0], arg[1], arg[2], #arg, ...)");

  const Result result = run({"run", script, "--", "one", "--two"});

  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_EQ(result.out, script + "\tone\t--two\t2\tone\t--two\n");
}

TEST_F(CommandLine, RunRefusesWordsWithoutDashes) {
  const std::string script = write("a.lua", "print('ran', ...)");

  const Result setting = run({"run", script, "lr=1"});
  EXPECT_EQ(setting.status, kWrongUsage);
  EXPECT_EQ(setting.out, "");
  EXPECT_EQ(setting.err,
            "moonhalo: run: 'lr=1' is neither an option nor behind --\n  have  lr=1\n"
            "  fix   give --set lr=1 to mh.config, or put -- before it: arg[1] of the script\n");
  const Result word = run({"run", script, "--ranks", "2", "data.h5", "--", "more"});
  EXPECT_EQ(word.status, kWrongUsage);
  EXPECT_EQ(word.out, "");
  EXPECT_EQ(word.err,
            "moonhalo: run: 'data.h5' is neither an option nor behind --\n  have  data.h5\n"
            "  fix   put -- before it: arg[1] of the script\n");
  EXPECT_THAT(run({"run", script, "--profile", "wide"}).err, HasSubstr("fix   write --profile=wide to name"));
  EXPECT_EQ(run({"run", script, "--"}).out, "ran\n");
  EXPECT_EQ(run({"run", script, "--", "--", "lr=1"}).out, "ran\t--\tlr=1\n");
  EXPECT_EQ(run({"env", "--", "lr=1"}).status, kWrongUsage);
}

TEST_F(CommandLine, AFileAsTheFirstWordIsRun) {
  const std::string script = write("a.lua", "print(require('moonhalo').world_size(), ...)");

  const Result result = run({script, "--ranks", "1", "--", "--two", "3"});
  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_EQ(result.out, "1\t--two\t3\n");
  EXPECT_THAT(run({script, "lr=1"}).err, HasSubstr("moonhalo: run: 'lr=1' is neither an option nor behind --"));
}

TEST_F(CommandLine, SaysItsVersion) {
  const Result result = run({"--version"});
  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_THAT(result.out, ::testing::MatchesRegex("moonhalo [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST_F(CommandLine, WordsThatAreMissingOrMisspeltAreNamedWithTheNearest) {
  const std::string script = write("a.lua", "print('ran')");
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "moonhalo: no subcommand\n  have  moonhalo\n  fix   moonhalo run SCRIPT runs a script; "},
      {{"rum", script},
       "moonhalo: 'rum' is neither a subcommand nor a file; did you mean 'run'?\n  have  rum\n  fix   "},
      {{"gone.lua"}, "moonhalo: 'gone.lua' is neither a subcommand nor a file\n  have  gone.lua\n  fix   "},
      {{folder_.string()}, "' is neither a subcommand nor a file\n"},
      {{"--rank", "3", script},
       "moonhalo: no option '--rank'; did you mean '--ranks' or '--run'?\n  have  --rank\n  fix   give the "},
      {{"--ranks", "3", script}, "moonhalo: option '--ranks' has no subcommand before it\n  have  --ranks\n"},
      {{"--versoin"}, "moonhalo: no option '--versoin'; did you mean '--version'?"},
      {{"run", "--rank", "3", script},
       "moonhalo: run: no option '--rank'; did you mean '--ranks' or '--run'?\n  have  --rank\n  fix   moonhalo run "
       "--help"},
      {{"run", script, "--rank=3"},
       "moonhalo: run: no option '--rank'; did you mean '--ranks' or '--run'?\n  have  --rank=3\n"},
      {{"run", "--set", "--rank", script, "--quite"}, "moonhalo: run: no option '--quite'; did you mean '--quiet'?"},
      {{script, "--devise", "cpu"}, "moonhalo: run: no option '--devise'; did you mean '--device'?"},
      {{"env", "--tri"}, "moonhalo: env: no option '--tri'; did you mean '--try'?"},
      {{"run", "gone.lua"}, "File does not exist: gone.lua"}};
  for (const auto& [words, said] : cases) {
    const Result result = run(words);

    EXPECT_EQ(result.status, kWrongUsage) << said;
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_EQ(result.out, "") << said;
  }
}

TEST_F(CommandLine, RequireLooksInTheScriptsFolder) {
  write("lib/init.lua", "return {answer = 42}");
  const std::string script = write("a.lua", "print(require('lib').answer)");

  EXPECT_EQ(run({"run", script}).out, "42\n");
}

TEST_F(CommandLine, AFailingScriptShowsItsLine) {
  const std::string script = write("bad.lua", "local mh = require 'moonhalo'\nlocal y = mh.ones(2):mm(mh.ones(3))\n");

  const Result result = run({"run", script});

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.err, HasSubstr("bad.lua:2: "));
  EXPECT_THAT(result.err, HasSubstr("  2 | local y = mh.ones(2):mm(mh.ones(3))"));
  EXPECT_THAT(result.err, Not(HasSubstr("libtorch")));
}

TEST_F(CommandLine, AFailingRankStopsRanksThatComputeOrWait) {
  const std::string script = write("one.lua", R"(local mh = require "moonhalo"
local others = arg[1]
if mh.rank() == 1 then error("I am broken") end
if others == "loop" then while true do end end
mh.barrier()
)");
  for (const char* others : {"loop", "wait"}) {
    const Result result = run({"run", script, "--ranks", "3", "--", others});

    EXPECT_EQ(result.status, kScriptFailed) << others;
    EXPECT_THAT(result.err, HasSubstr("rank 1: ")) << others;
    EXPECT_THAT(result.err, HasSubstr("one.lua:3: I am broken\n  3 | if mh.rank() == 1")) << others;
    EXPECT_THAT(result.err, Not(HasSubstr("rank 0"))) << others;
  }
}

TEST_F(CommandLine, RanksThatFailAlikeSaySoOnce) {
  const std::string script = write("all.lua", "error('same for all', 0)");

  const Result result = run({"run", script, "--ranks", "4"});

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.err, ContainsRegex("^ranks? [0-9, -]+: same for all"));
  EXPECT_EQ(result.err.find("same for all"), result.err.rfind("same for all"));
}

TEST_F(CommandLine, ARankThatLeavesIsLost) {
  const std::string script =
      write("leave.lua", "local mh = require 'moonhalo'\nif mh.rank() > 0 then mh.barrier() end");

  EXPECT_EQ(run({"run", script, "--ranks", "2"}).status, kRankLost);
}

TEST_F(CommandLine, WarningsNameTheScriptsLineOnce) {
  const std::string script = write("warn.lua", R"(local mh = require "moonhalo"
for i = 1, 3 do
  mh.conv1d(mh.ones(1, 1, 9), mh.ones(1, 1, 4), nil, {padding = "same"})
end
)");

  const Result result = run({"run", script, "--ranks", "2"});

  EXPECT_EQ(result.status, kDone);
  EXPECT_THAT(result.err, ContainsRegex("warn.lua:3: warning: .*padding='same'"));
  EXPECT_EQ(result.err.find("warning: "), result.err.rfind("warning: "));
}

TEST_F(CommandLine, OsExitGivesTheStatus) {
  EXPECT_EQ(run({"run", write("exit.lua", "os.exit(7)")}).status, 7);
  EXPECT_EQ(run({"run", write("exit.lua", "os.exit(true)")}).status, 0);
  EXPECT_EQ(run({"run", write("exit.lua", "os.exit(4)"), "--ranks", "2"}).status, 4);
  EXPECT_THAT(run({"run", write("exit.lua", "os.exit(4)")}).err, IsEmpty());
}

// Like plain Lua: nothing that catches errors stops it, and what follows is not run.
TEST_F(CommandLine, OsExitEndsTheScriptWhateverStandsAroundIt) {
  for (const char* text :
       {"pcall(os.exit, 7)", "pcall(pcall, pcall, os.exit, 7)", "xpcall(os.exit, function() return 'kept' end, 7)",
        "coroutine.resume(coroutine.create(os.exit), 7)",
        "pcall(coroutine.wrap(function() coroutine.yield(1) end)) pcall(coroutine.wrap(os.exit), 7)",
        "local co = coroutine.create(function() local x <close> = setmetatable({}, {__close = function() os.exit(7) "
        "end}) coroutine.yield() end)"
        " coroutine.resume(co) coroutine.close(co)",
        "pcall(string.gsub, 'a', 'a', function() os.exit(7) end)", "xpcall(error, function() os.exit(7) end, 'x')",
        "os.exit(256 + 7)",
        "pcall(require('moonhalo').checkpoint, function(x) os.exit(7) end, require('moonhalo').ones(2))"}) {
    const std::string script = write("exit.lua", std::string(text) + "\nerror('not reached')");
    for (const char* ranks : {"1", "2"}) {
      const Result result = run({"run", script, "--ranks", ranks});

      EXPECT_EQ(result.status, 7) << text;
      EXPECT_THAT(result.err, IsEmpty()) << text;
    }
  }
}

TEST_F(CommandLine, CatchersOfErrorsCatchAllOthers) {
  const std::string script = write("catch.lua", R"(
print(pcall(error, {1}), select("#", pcall(error)), pcall(function(...) return ... end, 1, nil, 3))
print(xpcall(error, function(value) return value .. "!" end, "hm", 0))
print(xpcall(function(a, b) return b, a end, print, 1, 2))
print(pcall(xpcall, print), pcall(pcall))
local co = coroutine.create(function(x) local ok, got = pcall(function() return coroutine.yield(x) end) error({got}) end)
print(coroutine.resume(co, 1))
print(select(2, coroutine.resume(co, "passed on"))[1], coroutine.status(co), coroutine.close(co))
)");

  const Result result = run({"run", script});

  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_THAT(result.out, ::testing::MatchesRegex(
                              "false\t2\ttrue\t1\tnil\t3\nfalse\thm!\ntrue\t2\t1\nfalse\tfalse\t[^\n]*\ntrue\t1\n"
                              "passed on\tdead\tfalse\t\\{\"passed on\"\\}\n"));
}

TEST_F(CommandLine, ErrorValuesThatAreNoTextAreShown) {
  const std::pair<const char*, const char*> cases[] = {
      {"error({code = 5, why = 'full', where = {1, 2}})",
       "bad.lua:1: error value {code = 5, where = {...}, why = 'full'}"},
      {"error({'a', 2, name = 'x'})", "bad.lua:1: error value {'a', 2, name = 'x'}"},
      {"error(nil)", "bad.lua:1: error value nil"},
      {"error(42)", "bad.lua:1: error value 42"},
      {"error(print)", "bad.lua:1: error value function"},
      {"error(setmetatable({}, {__tostring = function() return 'describes itself' end}))", "describes itself"}};
  for (const auto& [text, said] : cases) {
    const Result result = run({"run", write("bad.lua", text)});

    EXPECT_EQ(result.status, kScriptFailed) << text;
    EXPECT_THAT(result.err, HasSubstr(said)) << text;
  }
}

TEST_F(CommandLine, TheTimeLimitIsGivenByOptionScriptOrEnvironment) {
  const std::string script = write("limit.lua", R"(local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"ranks"})
local before = mh.get_timeout()
if arg[1] then assert(mh.set_timeout(tonumber(arg[1])) == before) end
if mh.rank() == 0 then print(before, mh.get_timeout()) end
if mh.rank() == 1 and arg[1] then os.execute("sleep 4") end
mesh:barrier()
)");
  EXPECT_EQ(run({"run", script, "--ranks", "2"}).out, "600.0\t600.0\n");
  EXPECT_EQ(run({"run", script, "--ranks", "2", "--timeout", "2.5"}).out, "2.5\t2.5\n");
  ::setenv("MOONHALO_TIMEOUT_S", "7", 1);
  EXPECT_EQ(run({"run", script}).out, "7.0\t7.0\n");
  EXPECT_EQ(run({"run", script, "--ranks", "2", "--timeout", "9"}).out, "9.0\t9.0\n");
  ::setenv("MOONHALO_TIMEOUT_S", "abc", 1);
  for (const char* ranks : {"1", "2"}) {
    const Result result = run({"run", script, "--ranks", ranks});
    EXPECT_EQ(result.status, kWrongUsage);
    EXPECT_THAT(result.err, HasSubstr("MOONHALO_TIMEOUT_S=abc"));
  }
  ::unsetenv("MOONHALO_TIMEOUT_S");

  const Result late = run({"run", script, "--ranks", "2", "--", "0.2"});

  EXPECT_EQ(late.status, kRankLost) << late.err;
  EXPECT_THAT(late.err, HasSubstr("barrier timed out after 0.2 s on rank 0"));
  EXPECT_THAT(run({"run", script, "--", "0.0001"}).err,
              HasSubstr("set_timeout: expected seconds from 0.001 to 1e9, got 0.0001"));
  for (const char* limit : {"0", "0.0005", "-1", "soon", "nan", ""}) {
    const Result result = run({"run", script, std::string("--timeout=") + limit});
    EXPECT_EQ(result.status, kWrongUsage) << limit;
    if (*limit)
      EXPECT_THAT(result.err,
                  HasSubstr("--timeout: '" + std::string(limit) + "' is not a number of seconds from 0.001 to 1e9"));
  }
}

TEST_F(CommandLine, HelpNamesTheTimeLimitAndTheStatuses) {
  EXPECT_THAT(run({"--help"}).out, HasSubstr("MOONHALO_TIMEOUT_S"));
  EXPECT_THAT(run({"run", "--help"}).out, AllOf(HasSubstr("--timeout SECONDS"), HasSubstr("3 when a rank was lost")));
}

TEST_F(CommandLine, AFakeWorldHasTheRanksThatWereAskedFor) {
  const std::string script = write("fake.lua", "print(require('moonhalo').world_size())");

  EXPECT_EQ(run({"run", script, "--backend", "fake", "--ranks", "64"}).out, "64\n");
}

TEST_F(CommandLine, X14_AnyRankOfAFakeWorldCanBeRun) {
  const std::string script = write("fake.lua", "print(require('moonhalo').rank())");
  EXPECT_EQ(run({"run", script, "--backend", "fake", "--ranks", "64", "--fake-rank", "63"}).out, "63\n");

  const auto late = run({"run", script, "--backend", "fake", "--ranks", "64", "--fake-rank", "64"});
  EXPECT_EQ(late.status, 2);
  EXPECT_THAT(late.err, AllOf(HasSubstr("--fake-rank 64: ranks count from 0"), HasSubstr("have  --ranks 64")));
  const auto real = run({"run", script, "--ranks", "2", "--fake-rank", "1"});
  EXPECT_EQ(real.status, 2);
  EXPECT_THAT(real.err, HasSubstr("fix   add --backend fake, or leave --fake-rank out"));
  const auto folder = run({"run", script, "--backend", "fake", "--run", "a"});
  EXPECT_EQ(folder.status, 2);
  EXPECT_THAT(folder.err, HasSubstr("--run: a dry run writes no files"));
}

TEST_F(CommandLine, WrongUsageIsStatusTwo) {
  const std::string script = write("ok.lua", "");
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"fly"},
      {"run"},
      {"run", "no_such_script.lua"},
      {"run", script, "--ranks", "0"},
      {"run", script, "--ranks", "two"},
      {"run", script, "--backend", "pigeon"},
      {"run", script, "--set", "novalue"},
      {"run", script, "--config", "no_such_file.json"},
      {"run", script, "--device", "toaster"},
      {"inspect", "no_such_file.h5"},
      {"ops", "conv2"},
      {"test", script},
      {"plan", script, "--ranks", "0"},
  };
  for (const auto& arguments : wrong) {
    const Result result = run(arguments);

    EXPECT_EQ(result.status, kWrongUsage) << ::testing::PrintToString(arguments);
    EXPECT_THAT(result.err, Not(IsEmpty())) << ::testing::PrintToString(arguments);
  }
  EXPECT_EQ(run({"run", script}).status, kDone);
}

TEST_F(CommandLine, AnImpossibleNumberOfRanksGetsAShortAnswer) {
  const std::string script = write("ok.lua", "return {test_a = function() end}");
  for (const char* command : {"run", "test"}) {
    for (const char* ranks : {"0", "-1", "two", "2.5", "", "99999999999"}) {
      const Result result = run({command, script, std::string("--ranks=") + ranks});

      EXPECT_EQ(result.status, kWrongUsage) << ranks;
      EXPECT_THAT(result.err, HasSubstr("--ranks")) << ranks;
      if (*ranks) EXPECT_THAT(result.err, HasSubstr("is not a number of ranks; allowed are 1, 2, 3, ...")) << ranks;
      EXPECT_LT(result.err.size(), 200) << result.err;
    }
  }
}

TEST_F(CommandLine, ALogIsContinued) {
  const std::string log = (folder_ / "run.jsonl").string();
  const auto lines = [&] {
    std::ifstream file(log);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string script = write("a.lua", "local mh = require 'moonhalo' mh.log{step = tonumber(arg[1])}");

  EXPECT_EQ(run({"run", script, "--ranks", "2", "--log", log, "--", "1"}).status, kDone);
  EXPECT_EQ(lines(), "{\"step\":1}\n");
  std::ofstream(log, std::ios::app) << "{\"step\":";  // a run that was killed
  EXPECT_EQ(run({"run", script, "--ranks", "2", "--log", log, "--", "2"}).status, kDone);
  EXPECT_THAT(lines(), ::testing::MatchesRegex(
                           "\\{\"step\":1\\}\n\\{\"step\":\n\\{\"run\":\\{\"ranks\":2,\"script\":\"[^\n]*a.lua\","
                           "\"started\":\"20[0-9T:-]*Z\"\\}\\}\n\\{\"step\":2\\}\n"));
}

TEST_F(CommandLine, ALogThatCannotBeWrittenIsAnErrorAtTheStart) {
  const std::string script = write("a.lua", "print('started')");
  for (const std::string& log : {std::string("/nowhere/run.jsonl"), folder_.string()}) {
    const Result result = run({"run", script, "--ranks", "2", "--log", log});

    EXPECT_EQ(result.status, kWrongUsage);
    EXPECT_THAT(result.err, HasSubstr("--log: cannot write '" + log + "': "));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST_F(CommandLine, TestCountsPassedAndFailed) {
  const std::string script = write("t.lua", R"(local mh = require "moonhalo"
return {
  test_good = function() mh.testing.assert_equal(1, 1) end,
  test_bad = function() mh.testing.assert_equal(1, mh.rank() + 1) error("always") end,
  test_one_rank = function() if mh.rank() == 1 then error("mine") end end,
  helper = function() error("not a test") end,
}
)");

  const Result alone = run({"test", script});
  EXPECT_EQ(alone.status, kScriptFailed);
  EXPECT_THAT(alone.out, AllOf(HasSubstr("ok     test_good"), HasSubstr("FAILED test_bad"),
                               HasSubstr("2 passed, 1 failed\n"), HasSubstr("t.lua:4: always")));

  const Result two = run({"test", script, "--ranks", "2"});
  EXPECT_EQ(two.status, kScriptFailed);
  EXPECT_THAT(two.out, AllOf(HasSubstr("1 passed, 2 failed\n"), ContainsRegex("rank 1: .*t.lua:5: mine")));

  EXPECT_EQ(run({"test", write("good.lua", "return {test_a = function() end}")}).status, kDone);
}

TEST_F(CommandLine, ATestThatStrandsOtherRanksEndsTheRun) {
  const std::string script = write("t.lua", R"(local mh = require "moonhalo"
return {
  test_a = function() if mh.rank() == 0 then error("left early") end mh.barrier() end,
  test_b = function() end,
}
)");

  const Result result = run({"test", script, "--ranks", "2"});

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.out, AllOf(HasSubstr("left early"),
                                HasSubstr("\nnot run, since the ranks no longer agree after test_a: test_b\n"),
                                HasSubstr("0 passed, 1 failed")));
}

TEST_F(CommandLine, InformsAboutItself) {
  EXPECT_THAT(run({"info"}).out, AllOf(HasSubstr("LibTorch   2."), HasSubstr("Lua        5.4"),
                                       HasSubstr("threads tcp"), HasSubstr("devices by ")));
  EXPECT_THAT(run({"ops"}).out, AllOf(HasSubstr("aten::convolution "), HasSubstr("ops/window/conv.cpp")));
  EXPECT_THAT(run({"ops", "avg_pool2d"}).out, HasSubstr("aten::avg_pool2d(Tensor self, int[2] kernel_size"));
  EXPECT_THAT(run({"ops", "avg_pool2d"}).out, HasSubstr("    moves:  halo, once its tensors are cut as it needs\n"));
  EXPECT_THAT(run({"ops", "conv3d"}).out, HasSubstr(": aten::convolution\n    moves:  halo in aten::convolution"));
  EXPECT_THAT(run({"ops", "fft_rfft2"}).out, HasSubstr("made of other operators: aten::_fft_r2c\n    moves:  "));
  EXPECT_THAT(run({"ops", "einsum"}).out, HasSubstr("made of other operators: aten::bmm\n    moves:  "));
  EXPECT_THAT(run({"ops", "rrelu"}).out, AllOf(HasSubstr("aten::rrelu("), Not(HasSubstr("pointwise.cpp"))));
  EXPECT_THAT(run({"ops", "conv2"}).err, HasSubstr("did you mean 'conv2d'"));
  EXPECT_THAT(run({"env"}).out, AllOf(HasSubstr("launcher      "), HasSubstr("control       threads")));
  EXPECT_THAT(run({"env", "--try", "--ranks", "2"}).out,
              AllOf(HasSubstr("2 ranks, backend threads, tensors on cpu"), HasSubstr("16777216")));
  EXPECT_THAT(run({"--help"}).out, HasSubstr("repl"));
  EXPECT_EQ(run({"--help"}).status, kDone);
}

TEST_F(CommandLine, AnnotationsNameWhatExists) {
  const std::string path = (folder_ / "moonhalo.lua").string();
  ASSERT_EQ(run({"info", "--annotations", path}).status, kDone);
  const std::string check = write("check.lua", R"(local mh = require "moonhalo"
local text = io.open(arg[1]):read("a")
assert(load(text, "=annotations", "t"))
assert(text:find("---@meta moonhalo", 1, true))
local sum = "fun(self: Tensor, dim: integer[]?, " ..
  "keepdim?: boolean, options?: {dtype?: string?}): Tensor"
assert(text:find(sum, 1, true), sum)
local counted = 0
for owner, name in text:gmatch("function ([%w_]+)[.:]([%w_]+)%(") do
  if owner == "mh" then assert(mh[name], name) end
  if owner == "Tensor" then assert(mh.Tensor[name], name) end
  counted = counted + 1
end
for name in pairs(mh) do
  local keyword = name == "repeat" or name == "and" or name == "or"
  if name:match("^%a[%w_]*$") then assert(keyword or text:find("mh." .. name, 1, true), name) end
end
print(counted > 1500)
)");
  const Result result = run({"run", check, "--", path});
  EXPECT_EQ(result.out, "true\n") << result.err;
}

using CommandLineDeathTest = CommandLine;

TEST_F(CommandLineDeathTest, ARankInALongCallCannotKeepTheProcessAlive) {
  ASSERT_EQ(mkfifo((folder_ / "silent").c_str(), 0600), 0);
  const std::string script = write("long.lua", R"(local mh = require "moonhalo"
if mh.rank() == 1 then error("broken") end
io.open(arg[1])  -- waits for a writer that never comes
)");
  SessionOptions options;
  options.script = script;
  options.arguments = {(folder_ / "silent").string()};
  options.ranks = 2;

  EXPECT_EXIT(run_session(options, [](lua_State* lua) { run_script(lua, 0); }),
              ::testing::ExitedWithCode(kScriptFailed), "rank 1: .*long.lua:2: broken");
}

TEST(Repl, LoadsExpressionsAndStatementsAndAsksForMore) {
  const auto state = new_state();
  bool incomplete = false;
  EXPECT_EQ(load_chunk(state.get(), "1 + 1", incomplete), "");
  EXPECT_EQ(load_chunk(state.get(), "x = 1", incomplete), "");
  EXPECT_NE(load_chunk(state.get(), "for i = 1, 2 do", incomplete), "");
  EXPECT_TRUE(incomplete);
  EXPECT_NE(load_chunk(state.get(), "x = = 1", incomplete), "");
  EXPECT_FALSE(incomplete);
}

TEST(Repl, CompletesFieldsMethodsAndOperators) {
  const auto state = new_state();
  ASSERT_EQ(luaL_dostring(state.get(), "mh = require 'moonhalo'; x = mh.ones(2); config = {width = 1, wide = {a = 1}}"),
            LUA_OK);

  EXPECT_THAT(complete_word(state.get(), "config.wi"), ::testing::ElementsAre("config.wide", "config.width"));
  EXPECT_THAT(complete_word(state.get(), "config.wide."), ::testing::ElementsAre("config.wide.a"));
  EXPECT_THAT(complete_word(state.get(), "mh.init_device"), ::testing::ElementsAre("mh.init_device_mesh"));
  EXPECT_THAT(complete_word(state.get(), "x:max_pool2"), ::testing::Contains("x:max_pool2d"));
  EXPECT_THAT(complete_word(state.get(), "conf"), ::testing::ElementsAre("config"));
  EXPECT_THAT(complete_word(state.get(), "nothing.here"), IsEmpty());
}

}  // namespace
}  // namespace moonhalo::scripting::test_command_line
