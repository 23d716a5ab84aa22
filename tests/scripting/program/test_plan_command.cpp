// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "moonhalo/engine/forecast/machine.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/scripting/program/plan_folder.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting::test_plan_command {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// Trains on blocks of uneven sizes, and prints what the third step sent.
constexpr const char* kTraining = R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local net = nn.Sequential(nn.Conv2d(3, 16, 3, {padding = 1}), nn.GELU(), nn.MaxPool2d(2),
  nn.Conv2d(16, 8, 3, {padding = 1}))
mh.distribute_module(net, mesh)
local sizes = {}
for i = 1, mh.world_size() do sizes[i] = 200 + i % 3 end
local x = mh.from_local(mh.zeros{1, 3, sizes[mh.rank() + 1], 200}, mesh, {mh.Shard(2, sizes)})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 0.1})
for i = 1, 3 do
  if i == 3 then mh.comm_stats{reset = true} end
  collectgarbage()  -- else tensors of the step before stay for a while
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  loss:backward()
  optimizer:step()
end
local sent = mh.comm_stats()
print(mh.rank(), sent.messages, sent.bytes, mh.memory().peak)
print "not shown by a plan"
)";

class PlanCommand : public PlanFolder {};

TEST_F(PlanCommand, X14_SaysWhatRealRanksSendAndHold) {
  const std::string training = script(kTraining), file = path("plan.json");

  const Result plan = run({"plan", training, "--ranks", "2,3,4", "--json", file});

  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("train.lua on 3 ranks: mesh rows 3, step 3"), HasSubstr("messages first"),
                              HasSubstr("No times are given"), Not(HasSubstr("not shown"))));
  const Json all = Json::parse(std::ifstream(file));
  ASSERT_EQ(all["plans"].size(), 3);
  EXPECT_TRUE(all["missing"].empty());
  for (const Json& one : all["plans"]) {
    const std::string ranks = std::to_string(one["ranks"].get<int>());
    SCOPED_TRACE(ranks);
    std::istringstream real(run({"run", training, "--ranks", ranks}).out);
    int64_t compared = 0;
    for (std::string line; std::getline(real, line);) {
      std::istringstream words(line);
      int64_t rank = 0, messages = 0, bytes = 0, peak = 0;
      if (!(words >> rank >> messages >> bytes >> peak)) continue;
      ++compared;
      const Json& planned = one["of_rank"].at(rank);
      int64_t planned_messages = 0, planned_bytes = 0;
      for (const auto& verb : planned["sent"]) {
        planned_messages += verb["messages"].get<int64_t>();
        planned_bytes += verb["bytes"].get<int64_t>();
      }
      EXPECT_EQ(planned_messages, messages) << "rank " << rank;
      EXPECT_EQ(planned_bytes, bytes) << "rank " << rank;
      EXPECT_NEAR(one["kinds"].at(planned["kind"].get<size_t>())["peak"].get<double>(), static_cast<double>(peak),
                  0.08 * static_cast<double>(peak));
    }
    EXPECT_EQ(compared, one["ranks"]);
  }
}

// A pipeline of two stages, as a search finds it and as a script trains it.
constexpr const char* kStages = R"(
local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init()
  self.first = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
  self.second = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 8))
end
function Net:stages() return {self.first, self.second} end
function Net:loss(y, sample) return mh.mse_loss(y, sample.target) end
function Net:forward(sample) return self:loss(self.second(self.first(sample[1])), sample) end
local function sample() return {mh.zeros{256, 64}, target = mh.zeros{256, 8}} end
local function config(options)
  options.pipeline_nmicros = 4
  return mh.ComputeConfig{plan_ngpus = 2, use_end2end = true, pas_config = options}
end
)";

constexpr const char* kSearch = R"(
local _, report = mh.parallelize(Net(), {sample = sample()}, "autodist",
  config{machine = "h100", most_data = 1, most_tensor = 1}, {load_module = false})
print(("%.17g %d %d"):format(report.candidates[1].seconds, report.candidates[1].bytes, report.candidates[1].memory))
)";

constexpr const char* kTrainStages = R"(
local net = mh.parallelize(Net(), {sample = sample()}, "pp", config{})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
local samples = {}
for i = 1, 4 do samples[i] = sample() end
for _ = 1, 3 do
  net:train_step(samples)
  optimizer:step()
end
)";

TEST_F(PlanCommand, X14_ASearchForecastsWhatAPlanOfTheScriptDoes) {
  const std::string file = path("plan.json");
  const Result search = run({"run", script((std::string(kStages) + kSearch).c_str())});
  ASSERT_EQ(search.status, 0) << search.err;
  double step = 0;
  int64_t bytes = 0, memory = 0;
  std::istringstream(search.out) >> step >> bytes >> memory;

  const std::string training = script((std::string(kStages) + kTrainStages).c_str());
  const Result plan = run({"plan", training, "--ranks", "2", "--machine", "h100", "--json", file});

  ASSERT_EQ(plan.status, 0) << plan.err;
  const Json planned = Json::parse(std::ifstream(file))["plans"][0];
  EXPECT_GT(step, 0);
  EXPECT_NEAR(planned["time"]["step"].get<double>(), step, 1e-9 * step);
  int64_t most_bytes = 0, most_memory = 0;
  for (const Json& rank : planned["of_rank"]) {
    int64_t sent = 0;
    for (const auto& verb : rank["sent"]) sent += verb["bytes"].get<int64_t>();
    most_bytes = std::max(most_bytes, sent);
    most_memory = std::max(most_memory, planned["kinds"].at(rank["kind"].get<size_t>())["peak_of_step"].get<int64_t>());
  }
  EXPECT_EQ(most_bytes, bytes);
  EXPECT_NEAR(static_cast<double>(most_memory), static_cast<double>(memory), 0.08 * static_cast<double>(memory));
}

TEST_F(PlanCommand, X14_AMachineGivesTimes) {
  const std::string training = script(kTraining), file = path("plan.json"), slow = path("slow.json");
  Machine machine = read_machine("h100");
  machine.device.launch *= 10;
  write_machine(machine, slow);

  const Result plan = run({"plan", training, "--ranks", "2,8", "--machine", "h100", "--json", file});

  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("  step    "), HasSubstr("; efficiency 0."), HasSubstr("time first"),
                              HasSubstr("ranks x step"), HasSubstr("forecasts for '" + machine.name + "'")));
  const Json fast = Json::parse(std::ifstream(file))["plans"][1]["time"];
  const double step = fast["step"];
  EXPECT_NEAR(fast["computing"].get<double>() + fast["messages"].get<double>() + fast["waiting"].get<double>(), step,
              1e-9 * step);
  ASSERT_EQ(run({"plan", training, "--ranks", "8", "--machine", slow, "--backend", "mpi", "--json", file}).status, 0);
  EXPECT_GT(Json::parse(std::ifstream(file))["plans"][0]["time"]["step"].get<double>(), 2 * step);

  EXPECT_THAT(run({"plan", training, "--machine", path("none.json")}).err, HasSubstr("none.json"));
  EXPECT_EQ(run({"plan", training, "--backend", "mpi"}).status, 2);
}

// Its steps take 50 ms of processor time in Lua, and almost nothing in operators. It fails behind the recorded steps.
constexpr const char* kBusyScript = R"(
local mh = require "moonhalo"
local net = mh.nn.Linear(2, 2)
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
for _ = 1, 6 do
  local start = os.clock()
  while os.clock() - start < 0.05 do end
  optimizer:zero_grad()
  net(mh.ones{1, 2}):sum():backward()
  optimizer:step()
end
error "this needs a value that is not computed"
)";

TEST_F(PlanCommand, X14_TheTimeOfTheScriptBelongsToTheStep) {
  const std::string training = script(kBusyScript), file = path("plan.json"), machine = here();
  const auto step = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"plan", training, "--machine", machine, "--json", file};
    words.insert(words.end(), more.begin(), more.end());
    const Result plan = run(words);
    EXPECT_EQ(plan.status, 0) << plan.err;
    return Json::parse(std::ifstream(file))["plans"][0]["time"]["step"].get<double>();
  };

  EXPECT_GT(step({}), 0.05);
  EXPECT_LT(step({"--no-measure"}), 0.05);
}

constexpr const char* kSum = R"(
local mh = require "moonhalo"
local x = mh.ones{100, 100}
x = x + x
)";

// The memory of MPI is added where MPI sends the messages.
TEST_F(PlanCommand, X14_ResidentMemoryHasThatOfMpi) {
  Machine machine = read_machine(here());
  machine.host.mpi_rss = 1e8;
  write_machine(machine, path("here.json"));
  const std::string sum = script(kSum), file = path("plan.json");
  for (const std::string backend : {"mpi", "threads"}) {
    const Result plan = run({"plan", sum, "--ranks", "2", "--machine", path("here.json"), "--no-measure", "--backend",
                             backend, "--json", file});
    ASSERT_EQ(plan.status, 0) << plan.err;
    const Json all = Json::parse(std::ifstream(file)), kind = all["plans"][0]["kinds"][0];
    const bool mpi = backend == "mpi";
    EXPECT_EQ(kind["resident"].get<int64_t>(),
              kind["peak"].get<int64_t>() * 11 / 10 + all["base_resident"].get<int64_t>() + (mpi ? 100000000 : 0));
    EXPECT_THAT(plan.out, mpi ? HasSubstr(" of each process, 100.0 MB of MPI)")
                              : HasSubstr(" of the process, which all ranks share)"));
  }
}

TEST_F(PlanCommand, X14_ManyRanksAreOfFewKinds) {
  const std::string file = path("plan.json");

  const Result plan = run({"plan", script(kTraining), "--ranks", "100", "--json", file});

  ASSERT_EQ(plan.status, 0) << plan.err;
  const Json one = Json::parse(std::ifstream(file))["plans"][0];
  EXPECT_LT(one["ran"].size(), 40) << plan.out;
  EXPECT_EQ(one["of_rank"].size(), 100);
  EXPECT_THAT(plan.out, HasSubstr("drawn to compare"));
}

TEST_F(PlanCommand, X14_ErrorsNameThePretendedRank) {
  const Result plan = run({"plan", script(R"(
local mh = require "moonhalo"
if mh.rank() == 3 then error "no rows left" end
)"),
                           "--ranks", "8"});

  EXPECT_EQ(plan.status, 1);
  EXPECT_THAT(plan.err, AllOf(HasSubstr("rank 3: "), HasSubstr("train.lua:3: no rows left"), HasSubstr("on 8 ranks")));
  EXPECT_EQ(run({"plan", script("os.exit(4)"), "--ranks", "2"}).status, 4);
}

// On 4 ranks the script does `what`.
std::string until_four_ranks(const std::string& what) {
  return "local mh = require 'moonhalo'\nlocal x = mh.ones{1000, 1000}\nif mh.world_size() == 4 then " + what +
         " end\n";
}

TEST_F(PlanCommand, X14_WhatIsPlannedStaysWhereALaterNumberOfRanksFails) {
  const std::string file = path("plan.json");
  std::ofstream(file) << "an earlier report";

  const Result plan =
      run({"plan", script(until_four_ranks("error 'no rows left'").c_str()), "--ranks", "2,3,4,5", "--json", file});

  EXPECT_EQ(plan.status, 1);
  EXPECT_THAT(plan.out, AllOf(HasSubstr("train.lua on 2 ranks: "), HasSubstr("train.lua on 3 ranks: "),
                              Not(HasSubstr("memory, largest rank"))));
  EXPECT_THAT(plan.err, AllOf(HasSubstr("no rows left"), HasSubstr("on 4 ranks")));
  const Json all = Json::parse(std::ifstream(file));
  ASSERT_EQ(all["plans"].size(), 2);
  EXPECT_EQ(all["plans"][1]["ranks"], 3);
  EXPECT_EQ(all["missing"], Json({4, 5}));
}

// A link stays a link, whether its target is there or not.
TEST_F(PlanCommand, X14_TheReportGoesWhereALinkLeads) {
  const std::string sum = script(kSum), link = path("latest.json"), to_none = path("next.json");
  std::ofstream(path("first.json")) << "an earlier report";
  std::filesystem::create_symlink("first.json", link);
  std::filesystem::create_symlink("second.json", to_none);

  for (const std::string& name : {link, to_none}) {
    const Result plan = run({"plan", sum, "--json", name});
    EXPECT_EQ(plan.status, 0) << plan.err;
    EXPECT_TRUE(std::filesystem::is_symlink(name)) << name;
  }

  for (const char* target : {"first.json", "second.json"}) {
    EXPECT_FALSE(std::filesystem::is_symlink(path(target)));
    EXPECT_EQ(Json::parse(std::ifstream(path(target)))["plans"].size(), 1) << target;
  }
}

// `moonhalo plan train.lua --json LINK > FILE`, where LINK leads to FILE: as /dev/stdout does.
TEST_F(PlanCommand, X14_TheReportFollowsWhatIsPrintedIntoTheSameFile) {
  const std::string file = path("out.txt"), link = path("stdout");
  std::ofstream(file).close();
  std::filesystem::create_symlink(file, link);
  const int output = dup(STDOUT_FILENO), to = open(file.c_str(), O_WRONLY);
  ASSERT_GE(to, 0);
  std::fflush(stdout);
  dup2(to, STDOUT_FILENO);

  std::vector<std::string> words = {"moonhalo", "plan", script(kSum), "--json", link};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  const int status = command_line(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  dup2(output, STDOUT_FILENO);
  close(output);
  close(to);

  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  std::stringstream printed;
  printed << std::ifstream(file).rdbuf();
  EXPECT_THAT(printed.str(), AllOf(HasSubstr("train.lua on 1 rank"), HasSubstr("\"plans\":")));
}

using PlanCommandDeathTest = PlanCommand;

TEST_F(PlanCommandDeathTest, X14_WhatIsPlannedStaysWhereThePlanIsStopped) {
  const std::string training = script(until_four_ranks("os.execute('kill -TERM $PPID') while true do end").c_str());
  const std::string out = path("out.txt"), file = path("plan.json");
  std::vector<std::string> words = {"moonhalo", "plan", training, "--ranks", "2,3,4", "--json", file};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());

  EXPECT_EXIT(
      {
        if (std::freopen(out.c_str(), "w", stdout) != nullptr) command_line(static_cast<int>(argv.size()), argv.data());
      },
      ::testing::KilledBySignal(SIGTERM), "");

  std::stringstream printed;
  printed << std::ifstream(out).rdbuf();
  EXPECT_THAT(printed.str(), AllOf(HasSubstr("train.lua on 2 ranks: "), HasSubstr("train.lua on 3 ranks: ")));
  EXPECT_EQ(Json::parse(std::ifstream(file))["plans"].size(), 2);
}

TEST_F(PlanCommand, X14_AScriptWithoutStepsIsOneStep) {
  const Result plan = run({"plan", script(R"(
local mh = require "moonhalo"
local x = mh.ones{1000, 1000}
if mh.rank() == 0 then x = x + x end
)"),
                           "--ranks", "3"});

  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("no step of an optimizer"), HasSubstr("8.0 MB"), HasSubstr("4.0 MB on rank 1"),
                              HasSubstr("2 kinds of ranks"), HasSubstr("sent           nothing")));
}

// The number of wet points depends on values that a plan does not compute.
constexpr const char* kPoints = R"(
local mh = require "moonhalo"
local depth = mh.ones{200, 200}
local function wet() return depth:masked_select(depth:gt(0.5)) end
local points = arg[1] and mh.assume(tonumber(arg[1]), wet) or wet()
print(points.shape[1])
)";

TEST_F(PlanCommand, X14_NumbersThatDependOnValuesAreAssumed) {
  const std::string points = script(kPoints);

  const Result plan = run({"plan", points, "--", "1000000"});

  ASSERT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.out, HasSubstr("4.2 MB of tensors at the peak"));
  EXPECT_THAT(run({"plan", points}).err, AllOf(HasSubstr("train.lua:4"), HasSubstr("moonhalo help assume")));
  EXPECT_EQ(run({"run", points, "--", "7"}).out, "40000\n");
  EXPECT_THAT(run({"run", points, "--", "-1"}).err, HasSubstr("a count is at least 0"));
}

// Numbers by which ranks decide are computed, however many ranks there are.
TEST_F(PlanCommand, X14_FactsOfThousandsOfRanksAreComputed) {
  const std::string points = script(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local rows = 3 * mh.world_size()
local points = mh.distribute_tensor(mh.zeros{1, rows, 3}, mesh, {mh.Shard(1)})
local near = mh.distribute_tensor(mh.arange(rows):view{1, rows, 1}, mesh, {mh.Shard(1)})
print(mh.neighbor_offsets(points, points, near).shape[2])
)");
  const Result two = run({"run", points, "--ranks", "2"});
  const Result many =
      run({"run", points, "--backend", "fake", "--ranks", "2500", "--fake-rank", "2000", "--fake-tensors"});

  EXPECT_THAT(two.out, HasSubstr("6\n")) << two.err;
  EXPECT_THAT(many.out, HasSubstr("7500\n")) << many.err;
}

TEST_F(PlanCommand, X14_RefusesWrongWords) {
  const std::string training = script(kTraining);
  EXPECT_THAT(run({"plan", training, "more"}).err, AllOf(HasSubstr("'more'"), HasSubstr("fix   put -- before it")));
  EXPECT_EQ(run({"plan", training, "--ranks", "0"}).status, kWrongUsage);
  EXPECT_THAT(run({"plan", training, "--json", "/no/such/folder/plan.json"}).err, HasSubstr("--json: cannot write"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_command
