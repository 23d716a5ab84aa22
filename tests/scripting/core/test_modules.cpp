// SPDX-License-Identifier: Apache-2.0
// The files that `require` runs, and those that it never does. Programs and embedded sessions open their states in the
// same way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/support/raw_file.h"
#include "tests/scripting/several_states.h"

namespace moonhalo::scripting::test_modules {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A script's folder, and another that is the current one and that anybody may write to.
struct Modules : ::testing::Test {
  testing::Folder script, current;
  fs::path before = fs::current_path();
  Modules() { fs::current_path(current / ""); }
  ~Modules() override { fs::current_path(before); }

  static void plant(const std::string& path) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << "error('code of a planted file runs')";
  }
  static std::string running_as(const std::string& script, const std::string& code) {
    Context context;
    context.script = script;
    return run(new_state(std::move(context)).get(), code);
  }
  std::string running(const std::string& code) const { return running_as(script / "script.lua", code); }
};

TEST_F(Modules, Y21EmbeddedFilesAreNeverThoseOfAFolder) {
  for (const std::string& folder : {script / "", current / ""}) {
    for (const char* name : {"nn.lua", "optim.lua", "data.lua", "checkpoint.lua", "nn/module.lua",
                             "internal/sorted_keys.lua", "internal/ordered_map.lua"})
      plant(folder + "moonhalo/" + name);
    for (const char* name : {"moonhalo.lua", "moonhalo/init.lua", "moonhalo.so", "moonhalo/nn.so"})
      plant(folder + name);
  }
  EXPECT_EQ(running("local mh = require 'moonhalo'\n"
                    "local net = require('moonhalo.nn').Linear(2, 3)\n"
                    "local opt = mh.optim.Adam(net:parameters(), {lr = 1})\n"
                    "return #net(mh.ones{1, 2}).shape .. type(mh.data.open) .. type(mh.checkpoint.save)"),
            "2functionfunction");
}

TEST_F(Modules, Y21NoLibraryOfTheCurrentFolderIsLoaded) {
  plant(current / "fast.so");
  plant(current / "moonhalo.so");
  const std::string message = running("return require 'fast'");
  EXPECT_THAT(message, HasSubstr("module 'fast' not found"));
  EXPECT_EQ(message.find("./fast.so"), std::string::npos) << message;
  EXPECT_THAT(running("return require 'moonhalo.nothing'"), HasSubstr("no embedded file 'nothing.lua'"));
  EXPECT_EQ(running("for one in package.cpath:gmatch('[^;]+') do if one:sub(1, 1) ~= '/' then return one end end"),
            "nil");
}

TEST_F(Modules, OfTheScriptsFolderAreFound) {
  std::ofstream(script / "mine.lua") << "return 'mine'";
  plant(current / "mine.lua");
  fs::create_directories(script / "parts");
  std::ofstream(script / "parts/init.lua") << "return 'parts'";
  EXPECT_EQ(running("return require('mine') .. require('parts')"), "mineparts");
  EXPECT_EQ(running_as("script.lua", "return pcall(require, 'mine') and 1 or 'planted'"), "planted");
}

}  // namespace
}  // namespace moonhalo::scripting::test_modules
