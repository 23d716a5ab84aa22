// SPDX-License-Identifier: Apache-2.0
// Scripts whose ranks diverge, on rank threads and in the repl (under mpirun: tests/mpi/parting_script.cmake). The
// time limit of a collective is ten minutes, so it is not what ends them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_desync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kSetUp =
    "local mh = require 'moonhalo'\n"
    "local mesh = mh.init_device_mesh('cpu', {3}, {'x'})\n"
    "local x = mh.from_local(mh.full({2, 2}, mh.rank() + 1.0), mesh, {mh.Shard(0)})\n"
    "local fields = {u = x * 2, v = x + 1}\n";

Result run_script(const std::string& lines) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "parting.lua";
  std::ofstream(path) << kSetUp << lines;
  return run({"run", path, "--ranks", "3"});
}

TEST(DesyncScript, SumOnOneRankAndMeanOnTheOthersNamesBothAndTheirLines) {
  const Result result = run_script(
      "if mh.rank() == 1 then\n"
      "  print(x:sum():item())\n"
      "else\n"
      "  print(x:mean():item())\n"
      "end\n");

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("aten::sum"), HasSubstr("aten::mean"), HasSubstr(".lua:6"),
                                HasSubstr(".lua:8"), HasSubstr("a branch on the rank")));
}

TEST(DesyncScript, FieldsInAnotherOrderAreFoundThoughTheirCallsLookAlike) {
  const Result result = run_script(
      "local order = mh.rank() == 2 and {'v', 'u'} or {'u', 'v'}\n"
      "for _, name in ipairs(order) do print(fields[name]:sum():item()) end\n");

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, AllOf(HasSubstr("aten::mul"), HasSubstr("aten::add"), HasSubstr("`next` over a table")));
}

TEST(DesyncScript, ARankThatEndsIsNamedByThoseThatWait) {
  const Result result = run_script("if mh.rank() ~= 0 then x:sum():item() end\n");

  EXPECT_NE(result.status, kDone);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0 ended without joining all_reduce"), HasSubstr(".lua:5")));
}

TEST(DesyncScript, ARandomNumberThatDiffersIsFound) {
  const Result result = run_script("math.randomseed(mh.rank())\nprint((x * math.random()):sum():item())\n");

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.err, HasSubstr("is not the same on all ranks"));
}

TEST(DesyncScript, ARankMayLookAtItsOwnBlock) {
  const Result result = run_script(
      "if mh.rank() == 0 then print((x:to_local() * 3):sum():item()) end\n"
      "local total = x:sum():item()\n"
      "if mh.rank() == 2 then print(total) end\n");

  EXPECT_EQ(result.status, kDone) << result.err;
}

// Reads from a pipe instead of a terminal.
class Typed {
 public:
  explicit Typed(const std::string& text) : text_(text), before_(std::cin.rdbuf(text_.rdbuf())) { std::cin.clear(); }
  ~Typed() { std::cin.rdbuf(before_); }

 private:
  std::istringstream text_;
  std::streambuf* before_;
};

TEST(DesyncRepl, AChunkThatEndsOnSomeRanksWhileOthersWaitIsReported) {
  if (isatty(STDIN_FILENO)) GTEST_SKIP() << "reads lines from the terminal";
  const Typed typed(
      "mesh = mh.init_device_mesh('cpu', {3}, {'x'})\n"
      "x = mh.from_local(mh.ones(2, 2), mesh, {mh.Shard(0)})\n"
      "if mh.rank() == 0 then x:sum():item() end\n"
      "print('never')\n");

  const Result result = run({"repl", "--ranks", "3"});

  EXPECT_NE(result.status, kDone);
  EXPECT_THAT(result.err, AllOf(HasSubstr("rank 0: "), HasSubstr("without joining all_reduce"), HasSubstr("at repl:1"),
                                HasSubstr("the ranks have diverged")));
  EXPECT_THAT(result.out, Not(HasSubstr("never")));
}

TEST(DesyncRepl, AChunkThatTakesLongerOnOneRankIsNoParting) {
  if (isatty(STDIN_FILENO)) GTEST_SKIP() << "reads lines from the terminal";
  const Typed typed(
      "mesh = mh.init_device_mesh('cpu', {3}, {'x'})\n"
      "x = mh.from_local(mh.ones(2, 2), mesh, {mh.Shard(0)})\n"
      "if mh.rank() == 0 then local t = os.clock() while os.clock() < t + 0.3 do end end\n"
      "x:sum():item()\n"
      "x:sum():item()\n");

  const Result result = run({"repl", "--ranks", "3"});

  EXPECT_EQ(result.status, kDone) << result.err;
  EXPECT_EQ(result.out, "12.0\n12.0\n");
}

}  // namespace
}  // namespace moonhalo::scripting::test_desync
