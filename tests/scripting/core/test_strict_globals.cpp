// SPDX-License-Identifier: Apache-2.0
// Undefined globals are errors in `moonhalo run` and `test`, and where a host asks for it (B7). More in names.lua.
#include "moonhalo/scripting/core/strict_globals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "moonhalo/scripting/program/commands.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/several_states.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_strict_globals {
namespace {

using ::testing::HasSubstr;

TEST(StrictGlobals, AreForStatesThatAskForThem) {
  const auto state = new_state();
  EXPECT_EQ(run(state.get(), "return tostring(widht)"), "nil");

  forbid_undefined_globals(state.get());

  EXPECT_EQ(run(state.get(), "width = 3\nreturn widht"),
            "script.lua:2: no variable 'widht'; did you mean 'width'?\n  have  a global that nothing was assigned to\n"
            "  fix   assign it first (nil will do), or test for it with rawget(_G, \"widht\")");
  EXPECT_EQ(run(state.get(), "return width + (rawget(_G, 'widht') or 1)"), "4");
  // C++ code that looks for a global gets nil, as ever.
  EXPECT_EQ(lua_getglobal(state.get(), "on_step"), LUA_TNIL);
  lua_settop(state.get(), 0);
  EXPECT_THROW(forbid_undefined_globals(state.get()), c10::ValueError);
}

TEST(StrictGlobals, AScriptIsStoppedAtItsLineOnAllRanks) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "strict_globals.lua";
  std::ofstream(path)
      << "local mh = require 'moonhalo'\nlocal pad = 1\nprint(mh.ones(2):sum{dim = 0, keepdim = keepdims})\n";
  std::vector<std::string> words = {"moonhalo", "run", path, "--ranks", "2"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStderr();

  const int status = command_line(static_cast<int>(argv.size()), argv.data());

  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, kScriptFailed);
  EXPECT_THAT(error, HasSubstr("ranks 0-1: "));
  EXPECT_THAT(error, HasSubstr("strict_globals.lua:3: no variable 'keepdims'"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_strict_globals
