// SPDX-License-Identifier: Apache-2.0
// Messages name files in full, whatever their folder is called; Lua itself keeps 56 bytes of a path.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_error_paths {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ErrorPaths : public ::testing::Test {
 protected:
  ErrorPaths() { std::filesystem::create_directories(folder_); }

  /// Returns what a script of these lines writes to stderr on two ranks.
  std::string error_of(const std::string& text) {
    std::ofstream(script_) << text;
    std::vector<std::string> words = {"moonhalo", "run", script_, "--ranks", "2"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStderr();
    const int status = command_line(static_cast<int>(argv.size()), argv.data());
    const std::string error = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(status, kScriptFailed) << error;
    return error;
  }

  const moonhalo::testing::Folder own_;
  const std::filesystem::path folder_ =
      own_.path() / "Übung mit Raum, in einem Ordner mit einem langen Namen" / "moonhalo";
  const std::string script_ = folder_ / "script.lua";
};

TEST_F(ErrorPaths, OfAnErrorOfTheScript) {
  const std::string error = error_of("local limit = 3\nerror('above ' .. limit)\n");

  EXPECT_THAT(error, HasSubstr("ranks 0-1: " + script_ + ":2: above 3\n  2 | error('above ' .. limit)\n"));
}

TEST_F(ErrorPaths, OfACallThatIsWrong) {
  const std::string error = error_of("local mh = require 'moonhalo'\nmh.ones{2}:matmul(mh.ones{3})\n");

  EXPECT_THAT(error, HasSubstr("ranks 0-1: " + script_ + ":2: "));
  EXPECT_THAT(error, HasSubstr("\n  2 | mh.ones{2}:matmul(mh.ones{3})\n"));
}

TEST_F(ErrorPaths, OfAScriptThatLuaCannotRead) {
  const std::string error = error_of("local a = 1\nlocal b = = 2\n");

  EXPECT_THAT(error, HasSubstr(script_ + ":2: unexpected symbol"));
  EXPECT_THAT(error, HasSubstr("\n  2 | local b = = 2\n"));
}

TEST_F(ErrorPaths, OfAFileThatTheScriptReads) {
  std::ofstream(folder_ / "model.lua") << "local m = {}\nfunction m.make() error('no width') end\nreturn m\n";

  const std::string error = error_of("dofile('" + (folder_ / "model.lua").string() + "').make()\n");

  EXPECT_THAT(error, HasSubstr("ranks 0-1: " + (folder_ / "model.lua").string() + ":2: no width\n"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_error_paths
