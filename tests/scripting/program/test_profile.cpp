// SPDX-License-Identifier: Apache-2.0
// moonhalo run --profile, mh.profile and moonhalo profile.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <libdeflate.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "moonhalo/engine/profile/nvtx.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/run_program.h"
#include "tests/support/chrome_trace.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_profile {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTraining = R"(
local mh = require "moonhalo"
local net = mh.nn.Sequential(mh.nn.Linear(3, 3), mh.nn.Tanh())
local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
for step = 1, tonumber(arg[1]) do
  net(mh.ones{2, 3}):sum():backward()
  opt:step()
end
print("done")
)";

std::string gunzip(const std::string& bytes) {
  struct Free {
    void operator()(libdeflate_decompressor* one) const { libdeflate_free_decompressor(one); }
  };
  const std::unique_ptr<libdeflate_decompressor, Free> decompressor(libdeflate_alloc_decompressor());
  std::string text(1 << 24, ' ');
  size_t size = 0;
  EXPECT_EQ(libdeflate_gzip_decompress(decompressor.get(), bytes.data(), bytes.size(), text.data(), text.size(), &size),
            LIBDEFLATE_SUCCESS);
  text.resize(size);
  return text;
}

class ProfileOfARun : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / name).rdbuf();
    return text.str();
  }
  moonhalo::testing::Folder folder_;
};

TEST_F(ProfileOfARun, Y13_IsWrittenAndShown) {
  const std::string script = write("train.lua", kTraining), out = folder_ / "where";

  const Result trained = run({"run", script, "--ranks", "2", "--profile=" + out, "--profile-steps", "2:3", "--", "5"});
  EXPECT_EQ(trained.status, kDone) << trained.err;
  EXPECT_EQ(trained.out, "done\ndone\n");
  EXPECT_THAT(trained.err, AllOf(HasSubstr("profile in " + out + ": step "), HasSubstr("(2 steps, 2 ranks)")));
  EXPECT_THAT(read("where/table.txt"), AllOf(HasSubstr("\noperator "), HasSubstr("\nrank 1 ")));
  EXPECT_THAT(read("where/skew.txt"), AllOf(HasSubstr("rank 0  late "), HasSubstr("rank 1  late ")));

  const moonhalo::testing::ChromeTrace trace =
      moonhalo::testing::load_chrome_trace(gunzip(read("where/trace.json.gz")));
  EXPECT_EQ(trace.problems, "");
  EXPECT_EQ(trace.processes, 2u);
  EXPECT_THAT(trace.names, ::testing::Contains("aten::tanh"));
  EXPECT_THAT(read("where/flame.txt"), ContainsRegex("rank 1;step;[^\n]*Sequential[^\n]* [0-9]+\n"));

  const Result shown = run({"profile", out});
  EXPECT_EQ(shown.status, kDone) << shown.err;
  EXPECT_THAT(shown.out, AllOf(ContainsRegex("\nmodule +calls"), ContainsRegex("\nSequential +1.0 ")));
  EXPECT_THAT(read("where/memory.txt"), HasSubstr("peak of tensors in host memory: "));
  std::filesystem::create_directory(folder_ / "run");
  std::filesystem::copy(out, folder_ / "run/profile");
  EXPECT_EQ(run({"profile", folder_ / "run"}).out, shown.out);
  EXPECT_THAT(run({"profile", out, "--sort", "mac"}).err,
              HasSubstr("'mac' is none of self, total, calls, name, own, blocked, macs; did you mean 'macs'?"));
  const Result memory = run({"profile", out, "--memory"});
  EXPECT_THAT(memory.out, AllOf(ContainsRegex("\nmade in +part +bytes"), ContainsRegex("\n.before. +- ")));
  const Result by_line = run({"profile", out, "--by", "line", "--sort", "name"});
  EXPECT_THAT(by_line.out, AllOf(HasSubstr(script + ":6 "), HasSubstr(script + ":7 ")));
  const Result own = run({"profile", out, "--sort", "own"});
  EXPECT_THAT(own.out, ContainsRegex("\nmodule +calls .* +of step +blocked ms +own ms +MACs +GMAC/s +sent\n"));
  EXPECT_THAT(run({"profile", out, "--by", "operator", "--sort", "macs"}).out, ContainsRegex("\naten::addmm .* 18 "));
  const Result compared = run({"profile", out, "--by", "operator", "--compare", out});
  EXPECT_THAT(compared.out, AllOf(HasSubstr("before: step"), HasSubstr("0.0 %")));
}

TEST_F(ProfileOfARun, Y13_ThatEndsEarlyIsSavedOrSaysWhyNot) {
  const std::string script = write("train.lua", kTraining), out = folder_ / "where";

  const Result early = run({"run", script, "--profile=" + out, "--", "3"});
  EXPECT_THAT(early.err, HasSubstr("(1 step, 1 rank)"));  // step 3 of 3 to 5
  for (const char* steps : {"1", "2"}) {
    const Result none = run({"run", script, "--profile=" + out + "2", "--", steps});
    EXPECT_EQ(none.status, kDone);
    EXPECT_THAT(none.err, AllOf(HasSubstr("the run ended before the end of step 3"), HasSubstr("--profile-steps 1:3")));
    EXPECT_FALSE(std::filesystem::exists(out + "2"));
  }
  const std::string without = write("without.lua", "local mh = require 'moonhalo'\nmh.ones{3}:sum()");
  const Result whole = run({"run", without, "--profile=" + out + "3", "--profile-steps", "1:2"});
  EXPECT_THAT(whole.err, HasSubstr("(1 step, 1 rank)"));  // all of it
}

TEST_F(ProfileOfARun, Y13_IsInTheRunFolder) {
  const std::string script = write("train.lua", kTraining);

  const Result result =
      run({"run", script, "--profile", "--profile-steps", "1:1", "--run=" + (folder_ / "runs/a"), "--", "2"});

  ASSERT_EQ(result.status, kDone) << result.err;
  size_t found = 0;
  for (const auto& one : std::filesystem::directory_iterator(folder_ / "runs"))
    found += std::filesystem::exists(one.path() / "profile" / "table.txt") ? 1 : 0;
  EXPECT_EQ(found, 1u);
}

TEST_F(ProfileOfARun, Y13_OfAScriptReplacesThatOfTheCommandLine) {
  const std::string out = folder_ / "of the script";
  const std::string script =
      write("train.lua", "require('moonhalo').profile{steps = {1, 1}, folder = '" + out + "'}\n" + kTraining);

  const Result trained = run({"run", script, "--profile=" + (folder_ / "other"), "--quiet", "--", "2"});

  EXPECT_EQ(trained.err, "");
  EXPECT_TRUE(std::filesystem::exists(out + "/profile.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
}

TEST_F(ProfileOfARun, Y14_AddsUpToThePeakOfTheAllocator) {
  const std::string script = write("train.lua", R"(
local mh = require "moonhalo"
local net = mh.nn.Sequential(mh.nn.Linear(300, 300), mh.nn.Tanh(), mh.nn.Linear(300, 300))
local p = mh.profiler()
p:start()
mh.memory{reset = true}
for _ = 1, 3 do net(mh.ones{500, 300}):sum():backward() end
local peak = mh.memory().peak
p:stop()
p:save(arg[1])
print(peak)
)");
  const Result result = run({"run", script, "--", folder_ / "where"});
  ASSERT_EQ(result.status, kDone) << result.err;

  const nlohmann::json memory = nlohmann::json::parse(read("where/profile.json")).at("memory");
  double held = 0;
  for (const auto& one : memory.at("held")) held += one.at("bytes").get<double>();
  const double peak = std::stod(result.out);
  EXPECT_GT(peak, 500 * 300 * 4);
  EXPECT_NEAR(held, peak, peak / 100);
  EXPECT_EQ(held, memory.at("peak_bytes").get<double>());
}

TEST_F(ProfileOfARun, Y15_NanIsFoundInAWholeScript) {
  const std::string script = write("nan.lua", R"(
local mh = require "moonhalo"
local Root = mh.nn.Module:extend("Root")
function Root:forward(x) return mh.sqrt(x) end
print(Root()(mh.tensor{1.0, -1.0}):isnan():sum():item())
)");

  EXPECT_EQ(run({"run", script}).out, "1\n");
  const Result found = run({"run", script, "--detect-nan"});
  EXPECT_EQ(found.status, kScriptFailed);
  EXPECT_EQ(found.out, "");
  EXPECT_THAT(found.err, AllOf(HasSubstr("nan.lua:5: detect_nan: NaN made by aten::sqrt at " + script + ":4"),
                               HasSubstr("1 of the 2 elements are NaN, the first at [1] of [2]"), HasSubstr("Root")));
}

// A dry run writes no files, so that the command says so, and a script's mh.profile has no effect.
TEST_F(ProfileOfARun, Y13_OfADryRunIsOfOneRankAndWritesNothing) {
  const std::string out = folder_ / "where";
  const std::string script = write("train.lua", kTraining), own = write("own.lua", R"(
local mh = require "moonhalo"
mh.profile{steps = {1, 1}, folder = arg[1]}
local net = mh.nn.Linear(3, 3)
local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
local p = mh.profiler()
p:start()
net(mh.ones{2, 3}):sum():backward()
opt:step()
p:stop()
p:save(arg[1])
print(p:table{by = "operator"})
)");

  const Result refused = run({"run", script, "--backend", "fake", "--ranks", "4", "--profile=" + out, "--", "5"});
  EXPECT_EQ(refused.status, kWrongUsage);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--profile: a dry run writes no files"), HasSubstr("leave --profile out")));
  for (const char* rank : {"0", "3"}) {
    const Result shown = run({"run", own, "--backend", "fake", "--ranks", "4", "--fake-rank", rank, "--", out});
    EXPECT_EQ(shown.status, kDone) << shown.err;
    EXPECT_THAT(shown.out,
                AllOf(HasSubstr(std::string("rank ") + rank + " of 4 in a dry run"), HasSubstr("aten::addmm")));
  }
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(ProfileOfARun, Y30_NvtxNeedsCuda) {
  if (problem_of_nvtx("x").empty()) GTEST_SKIP() << "LibTorch with CUDA";
  const std::string script = write("train.lua", kTraining);
  const Result refused = run({"run", script, "--profile=nvtx", "--", "5"});
  EXPECT_EQ(refused.status, kWrongUsage);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("--profile=nvtx: no NVTX ranges in this build"), HasSubstr("fix   build")));
  const Result own =
      run({"run", write("own.lua", "local mh = require 'moonhalo'\nmh.profile{steps = {1, 2}, nvtx = true}")});
  EXPECT_EQ(own.status, kScriptFailed);
  EXPECT_THAT(own.err, HasSubstr("own.lua:2: profile: no NVTX ranges in this build"));
}

TEST_F(ProfileOfARun, Y16_DeterministicIsSetBeforeTheScript) {
  const std::string script =
      write("deterministic.lua", "print(require('moonhalo').are_deterministic_algorithms_enabled())");

  EXPECT_EQ(run({"run", script, "--deterministic"}).out, "true\n");
  at::globalContext().setDeterministicAlgorithms(false, false);
  EXPECT_EQ(run({"run", script}).out, "false\n");
}

TEST_F(ProfileOfARun, Y13_MistakesHaveARemedy) {
  const std::string script = write("train.lua", kTraining), file = write("file", "x");
  for (const char* steps : {"5:3", "0:2", "a", "3:", ":4", "3:4:5"}) {
    const Result wrong = run({"run", script, "--profile", "--profile-steps", steps, "--", "1"});
    EXPECT_EQ(wrong.status, kWrongUsage) << steps;
    EXPECT_THAT(wrong.err, HasSubstr("is not of the form FIRST:LAST")) << steps;
  }
  EXPECT_EQ(run({"run", script, "--profile-steps", "1:2", "--", "1"}).status, kWrongUsage);
  const Result late = run({"run", script, "--profile", "--profile-steps", "3:65536", "--", "1"});
  EXPECT_EQ(late.status, kWrongUsage);
  EXPECT_THAT(late.err, HasSubstr("step 65536 is above 65535"));
  const Result no_folder = run({"run", script, "--ranks", "2", "--profile=" + file, "--", "5"});
  EXPECT_EQ(no_folder.status, kScriptFailed);
  EXPECT_THAT(no_folder.err, AllOf(HasSubstr("cannot make the folder"), HasSubstr("ranks 0-1: ")));
  const Result no_profile = run({"profile", folder_.path().string()});
  EXPECT_EQ(no_profile.status, kScriptFailed);
  EXPECT_THAT(no_profile.err, HasSubstr("profile.json"));
  write("profile.json", "{\"format\": 99}");
  EXPECT_THAT(run({"profile", folder_.path().string()}).err, HasSubstr("of another version"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_profile
