// SPDX-License-Identifier: Apache-2.0
// moonhalo plan --check: a plan beside a real run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "moonhalo/engine/base/usable_cores.h"
#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/scripting/program/plan_check.h"
#include "moonhalo/scripting/program/plan_report.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/program/plan_folder.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting::test_plan_check {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Json = nlohmann::json;

// Trains on uneven blocks, on 4 ranks on blocks of a grid. `%s`: what else a step does.
std::string training(const std::string& more) {
  return R"(
local mh = require "moonhalo"
local nn = mh.nn
local grid = mh.world_size() == 4
local mesh = grid and mh.init_device_mesh("cpu", {2, 2}, {"rows", "columns"})
                  or mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local net = nn.Sequential(nn.Conv2d(3, 16, 3, {padding = 1}), nn.GroupNorm(4, 16), nn.GELU(), nn.MaxPool2d(2),
  nn.Conv2d(16, 8, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local whole = mh.zeros{1, 3, 203, 210}
local x = mh.distribute_tensor(whole, mesh, grid and {mh.Shard(2), mh.Shard(3)} or {mh.Shard(2)})
whole = nil
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
local kept
for i = 1, 100 do
  collectgarbage()  -- else tensors of the step before stay for a while
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  loss:backward()
  )" + more +
         R"(
  optimizer:step()
end
)";
}

class PlanCheck : public PlanFolder {
 protected:
  Result check(const std::string& text, std::vector<std::string> more) const {
    more.insert(more.begin(), {"plan", script(text), "--check", "--check-steps", "2", "--json", path("plan.json")});
    return run(more);
  }
};

// Compares `peak` of all ranks of a plan together: "peak" or "peak_of_step".
void expect_planned(const Json& one, const char* peak, double within) {
  double planned = 0, measured = 0;
  for (const Json& rank : one["check"]["ranks"]) {
    planned += rank[peak]["planned"].get<double>();
    measured += rank[peak]["measured"].get<double>();
  }
  EXPECT_NEAR(planned, measured, within * measured) << peak << " on ranks: " << one["ranks"];
}

TEST_F(PlanCheck, X14_RealRanksSendAndHoldWhatIsPlanned) {
  const Result result = check(training(""), {"--ranks", "1,2,3,4"});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("every rank sends what is planned"), HasSubstr("check memory"),
                                HasSubstr("check time"), Not(HasSubstr("out by more"))));
  const Json all = json();
  ASSERT_EQ(all["plans"].size(), 4);
  for (const Json& one : all["plans"]) {
    const Json& found = one["check"];
    SCOPED_TRACE(one["ranks"].dump());
    ASSERT_EQ(found["ranks"].size(), one["ranks"].get<size_t>());
    EXPECT_EQ(found["step"]["seconds"].size(), 2);
    EXPECT_GT(found["step"]["median"].get<double>(), 0);
    for (const Json& rank : found["ranks"]) {
      EXPECT_EQ(rank["planned"], rank["counted"]);
      EXPECT_EQ(rank["steps"], 6);
      if (one["ranks"] > 1) EXPECT_TRUE(rank["counted"].contains("exchange")) << rank;
    }
    for (const char* peak : {"peak", "peak_of_step"}) expect_planned(one, peak, 0.03);
  }
}

// Rank threads sum a tensor of 1 MiB and more in shares, straight into the result, and pack nothing. What goes from
// rank to rank is of columns, which are not in a row.
TEST_F(PlanCheck, X14_RankThreadsSumAndMoveAsPlanned) {
  const Result result = check(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"ranks"})
local net = mh.nn.Sequential(mh.nn.Linear(256, 512, {bias = false}), mh.nn.Linear(512, 256, {bias = false}))
mh.parallelize_module(net, mesh, {parameter = {["0.weight"] = {mh.Shard(0)}, ["1.weight"] = {mh.Shard(1)}}})
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
local x = mh.distribute_tensor(mh.zeros{2048, 2048}, mesh, {mh.Shard(0)})
for i = 1, 100 do
  collectgarbage()
  optimizer:zero_grad()
  net(mh.zeros{1024, 256}):square():mean():backward()
  optimizer:step()
  x = x:redistribute(mesh, {mh.Shard(i % 2)})
end
)",
                              {"--ranks", "2,3,4,8"});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const Json all = json();
  for (const Json& one : all["plans"]) {
    for (const Json& rank : one["check"]["ranks"]) {
      EXPECT_EQ(rank["planned"], rank["counted"]);
      EXPECT_TRUE(rank["counted"].contains("reduce_scatter")) << rank;
    }
    expect_planned(one, "peak", 0.01);
  }
}

// Volumes in blocks whose edges are exchanged together with the gradients of edges, through the layouts that oneDNN has
// for strides, single channels and transposed convolutions.
TEST_F(PlanCheck, X14_ConvolutionsHoldWhatIsPlanned) {
  const Result result = check(R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"depth"})
local net = nn.Sequential(nn.Conv3d(3, 16, 5, {padding = 2}), nn.Conv3d(16, 16, 5, {padding = 2, groups = 16}),
  nn.GELU(), nn.Conv3d(16, 32, 3, {stride = 2, padding = 1}), nn.GELU(),
  nn.ConvTranspose3d(32, 16, 2, {stride = 2}), nn.Conv3d(16, 3, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local x = mh.distribute_tensor(mh.zeros{2, 3, 18, 16, 18}, mesh, {mh.Shard(2)})
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
for i = 1, 100 do
  collectgarbage()
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
)",
                              {"--ranks", "1,2,3"});

  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const Json all = json();
  ASSERT_EQ(all["plans"].size(), 3);
  for (const Json& one : all["plans"]) expect_planned(one, "peak_of_step", 0.02);
}

// The other kinds of calls, on blocks of which that of the second rank is empty and others are uneven.
constexpr const char* kOtherCalls = R"(
local mh = require "moonhalo"
local nn = mh.nn
local ranks = mh.world_size()
local mesh = mh.init_device_mesh("cpu", {ranks}, {"ranks"})
local sizes = {}
for i = 1, ranks do sizes[i] = i == 2 and 0 or 20 + i % 3 end
local net = nn.Sequential(nn.Conv2d(3, 8, 3, {padding = 1}), nn.BatchNorm2d(8), nn.GELU(),
  nn.Conv2d(8, 8, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local x = mh.from_local(mh.zeros{2, 3, sizes[mh.rank() + 1], 60}, mesh, {mh.Shard(2, sizes)})
local stored = nn.Linear(60, 61)
mh.fully_shard(stored, {mesh = mesh})
local optimizer = mh.optim.AdamW(nn.ModuleList{net, stored}:parameters(), {lr = 0.1})
for _ = 1, 100 do
  collectgarbage()
  optimizer:zero_grad()
  local y = net(x)
  local columns = y:redistribute(mesh, {mh.Shard(3)})
  local chosen = y:movedim(2, 0):flatten(1):index_select(0, mh.tensor{3, 1, 20, 5, 7, 1})
  local given = mh.distribute_tensor(mh.zeros{7, 3}, mesh, {mh.Shard(0)})
  mh.set_halo{exchange = "all_to_all"}
  local wide = mh.conv2d(x, mh.ones{2, 3, 5, 5}, nil, 1, 2)
  mh.set_halo{exchange = "p2p"}
  local loss = y:square():mean() + columns:redistribute(mesh, {mh.Replicate()}):mean() + chosen:sum() + given:sum()
    + wide:mean() + stored(mh.local_batch(mh.randn{5, 60}, mesh)):square():mean()
  loss:backward()
  optimizer:step()
end
)";

TEST_F(PlanCheck, X14_CallsOfUnevenBlocksAreAsPlanned) {
  const Result result = check(kOtherCalls, {"--ranks", "2,3,4,8"});

  EXPECT_THAT(result.out, AllOf(HasSubstr("on 8 ranks: mesh ranks 8, step 3\n"), Not(HasSubstr("other messages"))))
      << result.err;
  const Json all = json();
  for (const Json& one : all["plans"]) {
    SCOPED_TRACE(one["ranks"].dump());
    std::set<std::string> kinds;
    ASSERT_EQ(one["check"]["ranks"].size(), one["ranks"].get<size_t>());
    for (const Json& rank : one["check"]["ranks"]) {
      EXPECT_EQ(rank["planned"], rank["counted"]);
      for (const auto& [kind, count] : rank["counted"].items()) kinds.insert(kind);
    }
    EXPECT_THAT(kinds, IsSupersetOf({"all_reduce", "all_gather", "broadcast", "exchange"}));
    EXPECT_EQ(kinds.contains("all_to_all"), one["ranks"] > 2) << "the second of two ranks is empty";
  }
}

// The loss of a plan is 1, that of a real run of zeros is small.
TEST_F(PlanCheck, X14_OtherMessagesThanPlannedAreAFailure) {
  const Result result =
      check(training("if loss:item() ~= 1 then kept = x:square():sum():item() end"), {"--ranks", "2"});

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.out, AllOf(HasSubstr("other messages than planned"), HasSubstr("rank 1: all_reduce planned ")));
  EXPECT_FALSE(json()["plans"][0]["check"]["sends_as_planned"].get<bool>());
}

TEST_F(PlanCheck, X14_MoreMemoryThanPlannedIsAFailure) {
  const Result result =
      check(training("if loss:item() ~= 1 and mh.rank() == 1 then kept = mh.zeros{1024, 1024} end"), {"--ranks", "2"});

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.out, AllOf(HasSubstr("check memory   all ranks together: "), HasSubstr("out by more than 3 %"),
                                HasSubstr("every rank sends what is planned")));
  EXPECT_FALSE(json()["plans"][0]["check"]["holds_as_planned"].get<bool>());
}

// The report of one rank whose run and step have these peaks; 100 bytes are planned for both.
std::string report_of(int64_t peak, int64_t peak_of_step, bool threads) {
  RanksPlan plan;
  plan.found.tapes.kinds.emplace_back();
  plan.found.tapes.kind_of = {0};
  plan.kinds.push_back({{0}, 100, {.bytes = 100}});
  plan.counts.emplace_back();
  RanksCheck check;
  check.ranks.push_back({.steps = 3, .peak = peak, .peak_of_step = peak_of_step});
  check.threads = threads;
  return check_text(plan, check);
}

TEST(PlanCheckText, X14_TheReportSaysWhichPeakDecides) {
  EXPECT_THAT(report_of(101, 99, true), HasSubstr("measured (+1.0 %): both are within 3 %\n"));
  EXPECT_THAT(report_of(101, 82, true),
              AllOf(HasSubstr("(+22.0 %)\n                 right: the peak of the run is within "
                              "3 %, and decides; that of the step also depends on when Lua"),
                    Not(HasSubstr("out by more"))));
  EXPECT_THAT(report_of(130, 99, true), AllOf(HasSubstr("right: the peak in the step is within 3 %, and decides"),
                                              Not(HasSubstr("out by more"))));
  EXPECT_THAT(report_of(130, 82, true), HasSubstr("(+22.0 %): out by more than 3 %"));
  EXPECT_THAT(report_of(101, 99, true), HasSubstr("a real run of 1 rank thread here"));
  EXPECT_THAT(report_of(101, 99, false), HasSubstr("a real run of 1 process here"));
  // Both peaks decide where ranks are processes.
  EXPECT_THAT(report_of(101, 82, false), HasSubstr("(+22.0 %): out by more than 3 %"));
}

TEST_F(PlanCheck, X14_AFailureOfTheRealRunIsTold) {
  const Result result =
      check(training("if loss:item() ~= 1 and mh.rank() == 1 then error 'diverged' end"), {"--ranks", "2"});

  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.err, AllOf(HasSubstr("diverged"), HasSubstr("the real run on 2 ranks failed")));
}

TEST_F(PlanCheck, X14_OptionsThatDoNotFitAreRefused) {
  EXPECT_EQ(check(training(""), {"--ranks", "65"}).status, kWrongUsage);
  EXPECT_EQ(check(training(""), {"--within", "20%"}).status, kWrongUsage);
  EXPECT_THAT(check(training(""), {"--machine", "h100", "--within", "fast"}).err, HasSubstr("'fast' is not a share"));
  const Result other = check(training(""), {"--machine", "h100", "--backend", "mpi"});
  EXPECT_EQ(other.status, kWrongUsage);
  EXPECT_THAT(other.err, AllOf(HasSubstr("plan --check: the real run communicates by threads\n  have  --backend mpi"),
                               HasSubstr("\n  fix   leave --backend out")));
}

TEST_F(PlanCheck, X14_AScriptWithTooFewStepsForATimeSaysHowMany) {
  std::string four = training("");
  four.replace(four.find("for i = 1, 100"), 14, "for i = 1, 4");

  const Result result = check(four, {"--ranks", "2"});

  EXPECT_EQ(result.status, kDone) << result.out << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("check time     not measured: the script ended after 4 steps, and the first one that "
                        "is timed is step 5\n"));
  EXPECT_TRUE(json()["plans"][0]["check"]["step"]["median"].is_null());
  four.replace(four.find("for i = 1, 4"), 12, "for i = 1, 5");
  EXPECT_THAT(check(four, {"--ranks", "2"}).out, HasSubstr("measured (one step)"));
}

// Real steps here beside a forecast for other hardware compare nothing.
TEST_F(PlanCheck, X14_AForecastForAnotherMachineIsRefused) {
  Machine other = read_machine("epyc");
  other.measured = true;
  other.host.cores = usable_core_count() + 1;
  write_machine(other, path("other.json"));

  for (const std::string& machine : {std::string("h100"), path("other.json")}) {
    const Result result = check(training(""), {"--ranks", "2", "--machine", machine});
    EXPECT_EQ(result.status, kWrongUsage);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr("plan --check: the real run is on this machine, '" + machine +
                                            "' is another one\n  have  "),
                                  HasSubstr("fix   moonhalo calibrate FILE measures this machine")));
  }
}

// Steps are mostly starts of operators, whose number is about the same in all divisions: real steps decide.
TEST_F(PlanCheck, X14_ASearchThatMeasuresIsNamed) {
  const Result result = check(R"(
local mh = require "moonhalo"
local nn = mh.nn
local net = nn.Sequential(nn.Conv2d(3, 8, 3, {padding = 1}), nn.GELU(), nn.Conv2d(8, 1, 3, {padding = 1}))
local config = mh.ComputeConfig{plan_ngpus = 2, pas_config = {machine = ")" +
                                  here() +
                                  R"("}}
mh.parallelize(net, {x = mh.zeros{8, 3, 16, 16}}, "autodist", config)
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
for _ = 1, 100 do
  optimizer:zero_grad()
  net(mh.zeros{8, 3, 16, 16}):square():mean():backward()
  optimizer:step()
end
)",
                              {"--ranks", "2"});

  EXPECT_THAT(result.out, ::testing::ContainsRegex("  check search   the real run measured [23] divisions and took '"))
      << result.err;
  EXPECT_GE(json()["plans"][0]["check"]["search"]["measured"], 2);
}

TEST_F(PlanCheck, X14_AForecastForThisMachineIsCompared) {
  const Result result = check(training(""), {"--machine", here(), "--no-measure"});

  EXPECT_EQ(result.status, kDone) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr(" ms forecast, "));
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_check
