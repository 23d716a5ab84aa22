// SPDX-License-Identifier: Apache-2.0
// moonhalo plan: operators that are measured on this machine, and where a long plan is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/scripting/program/dry_run.h"
#include "moonhalo/scripting/program/plan_operators.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/program/plan_folder.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting::test_plan_operators {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr const char* kSum = R"(
local mh = require "moonhalo"
local x = mh.ones{100, 100}
x = x + x
)";

class PlanOperators : public PlanFolder {};

TEST_F(PlanOperators, X14_TimesOfAnotherHostAreLeftOut) {
  const std::string sum = script(kSum), machine = here();
  std::ofstream(path("here.operators.json")) << R"({"host": "another processor", "operators": {}})";

  const Result first = run({"plan", sum, "--machine", machine}), second = run({"plan", sum, "--machine", machine});

  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("here.operators.json' are left out: they are of another host, LibTorch or method, "
                                   "'another processor'"));
  EXPECT_THAT(first.err, HasSubstr("operators of the script on this machine"));
  EXPECT_THAT(second.err, Not(HasSubstr("another host")));
}

TEST_F(PlanOperators, X14_OperatorsAreMeasuredAgainWhereThatIsWanted) {
  const std::string sum = script(kSum), machine = here(), file = path("here.operators.json");
  const auto times = [&] {
    return Json::parse(std::ifstream(file))["operators"]["1x" + std::to_string(usable_core_count())];
  };
  ASSERT_EQ(run({"plan", sum, "--machine", machine}).status, 0);
  Json slow = Json::parse(std::ifstream(file));
  for (Json& share : slow["operators"]) {
    for (Json& seconds : share) seconds = 3000.0;
  }
  std::ofstream(file) << slow;

  const Result kept = run({"plan", sum, "--machine", machine});
  EXPECT_THAT(kept.err, Not(HasSubstr("measured")));
  for (const Json& seconds : times()) EXPECT_EQ(seconds, 3000.0);
  Json marked = Json::parse(std::ifstream(file));
  for (const auto& [share, times] : marked["operators"].items()) {
    for (const auto& [key, seconds] : times.items()) marked["not quiet"][share].push_back(key);
  }
  std::ofstream(file) << marked;
  EXPECT_THAT(run({"plan", sum, "--machine", machine}).out,
              HasSubstr("2 operators measured while the machine was not quiet: --measure-again"));
  const Result again = run({"plan", sum, "--machine", machine, "--measure-again"});

  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("measured 2 operators of the script"));
  ASSERT_EQ(times().size(), 2);
  for (const Json& seconds : times()) EXPECT_NE(seconds, 3000.0);
}

TEST_F(PlanOperators, X14_OnlyOperatorsOfThisMachineAreMeasuredAgain) {
  const std::string sum = script(kSum);

  const Result elsewhere = run({"plan", sum, "--machine", "h100", "--measure-again"});

  EXPECT_EQ(elsewhere.status, kWrongUsage);
  EXPECT_THAT(
      elsewhere.err,
      AllOf(HasSubstr("plan --measure-again: no operator can be measured here\n  have  'h100', which is another"),
            HasSubstr("fix   leave --measure-again out")));
  EXPECT_EQ(run({"plan", sum, "--measure-again"}).status, kWrongUsage);
  EXPECT_EQ(run({"plan", sum, "--machine", here(), "--no-measure", "--measure-again"}).status, kWrongUsage);
  EXPECT_THAT(run({"plan", "--help"}).out, HasSubstr("--measure-again"));
}

TEST_F(PlanOperators, X14_ARangeFromRatesIsNoted) {
  const std::string sum = script(kSum), machine = here(), there = path("there.json");
  Machine other = read_machine(machine);
  ++other.host.cores;
  other.name = "there";
  write_machine(other, there);

  EXPECT_THAT(run({"plan", sum, "--machine", machine, "--no-measure"}).out,
              HasSubstr("note           2 operators were not measured (--no-measure): time from rates\n"));
  EXPECT_THAT(run({"plan", sum, "--machine", there}).out,
              HasSubstr("operators were not measured ('there' is not this "));
  for (const std::string& name : {machine, std::string("epyc")}) {
    const Result plan = run({"plan", sum, "--machine", name});
    EXPECT_EQ(plan.status, 0) << plan.err;
    EXPECT_THAT(plan.out, Not(HasSubstr("were not measured")));
  }
}

TEST(PlanProgress, X14_DryRunsAreCounted) {
  const moonhalo::testing::Folder folder;
  SessionOptions options;
  options.script = folder / "train.lua";
  options.ranks = 5;
  std::ofstream(options.script) << "local x = require('moonhalo').ones{10}";
  int64_t done = 0;

  dry_run(options, {0, 1, 3, 4}, 1, 0, [&](int64_t count) { done += count; });

  EXPECT_EQ(done, 4);
}

TEST(PlanProgress, X14_MeasuredKindsAreCounted) {
  const moonhalo::testing::Folder folder;
  RankKinds found;
  found.runs.resize(2);
  Machine here;
  here.host.cores = usable_core_count();
  OperatorTimes times(folder / "here.operators.json");
  std::vector<std::string> shown;
  SearchProgress progress([&](const std::string& text) { shown.push_back(text); }, 0);

  EXPECT_EQ(measure_operators(found, 2, times, here, progress), 0);

  EXPECT_THAT(
      shown, ElementsAre("operators of 0 of 2 kinds of ranks measured", "operators of 1 of 2 kinds of ranks measured"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_operators
