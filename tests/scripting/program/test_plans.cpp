// SPDX-License-Identifier: Apache-2.0
// N26: plans that one process has made, on the ranks that they are for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/scripting/program/plan_folder.h"
#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_plans {
namespace {

constexpr const char* kScript = R"(
local mh = require "moonhalo"
local nn = mh.nn
local Mlp = nn.Module:extend("Mlp")
function Mlp:init() self.fc1, self.fc2 = nn.Linear(6, 9), nn.Linear(9, 5) end
function Mlp:forward(x) return self.fc2(self.fc1(x):gelu()) end
local function seeded()
  mh.manual_seed(5)
  return Mlp():double()
end
mh.manual_seed(6)
local x = mh.randn({4, 6}, {dtype = "float64"})
local config = mh.ComputeConfig{plan_ngpus = 2, runtime_ngpus = 4}
local loads = mh.world_size() > 1
local made = mh.parallelize(seeded(), {x = x}, "tp", config, {gen_savedir = arg[1], load_module = loads})
if not loads then
  print(made.parameter["fc1.weight"][1], made.mesh[1][1])
  return
end
local weight, y = made.fc1.weight, made(mh.local_batch(x, made.parallel.mesh["unit"]))
local mine = y:full_tensor():narrow(0, 4 * made.parallel.mesh:coordinate("unit"), 4)
require("moonhalo.testing").assert_close(mine, seeded()(x):detach())
if mh.rank() == 0 then
  print("planned " .. tostring(made.parallel.planned), weight.placements[2], table.concat(weight:to_local().shape, "x"))
end
)";

class StoredPlans : public PlanFolder {};

TEST(Plans, N26_OneProcessPlansAndFourRanksLoad) {
  const testing::Folder folder;
  const std::string script = folder / "plan.lua", plans = folder / "plans";
  std::ofstream(script) << kScript;

  const Result planned = run({"run", script, "--", plans});
  EXPECT_EQ(planned.status, 0) << planned.err;
  EXPECT_EQ(planned.out, "Shard(0)\t2\n");
  EXPECT_TRUE(std::filesystem::exists(plans + "/Mlp/plan.json"));

  const Result loaded = run({"run", script, "--ranks", "4", "--backend", "threads", "--", plans});
  EXPECT_EQ(loaded.status, 0) << loaded.err;
  EXPECT_THAT(loaded.out, ::testing::StartsWith("planned false\tShard(0"));
  EXPECT_THAT(loaded.out, ::testing::EndsWith("\t5x6\n"));
}

// A model that a search divides, and that trains; arg[1]: where its plan is stored.
constexpr const char* kSearched = R"(
local mh = require "moonhalo"
local nn = mh.nn
mh.manual_seed(5)
local net = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 4))
local config = mh.ComputeConfig{plan_ngpus = mh.world_size(), pas_config = {machine = "h100"}}
mh.parallelize(net, {x = mh.zeros{16, 16}}, "autodist", config, {gen_savedir = arg[1]})
local optimizer = mh.optim.AdamW(net:parameters(), {lr = 1e-3})
for _ = 1, 16 do
  optimizer:zero_grad()
  net(mh.ones{16, 16}):square():mean():backward()
  optimizer:step()
end
print(mh.rank())
)";

TEST(Plans, X14_APlanOfAScriptThatSearchesIsThatOfItsDivision) {
  const testing::Folder folder;
  const std::string script = folder / "search.lua", plans = folder / "plans", file = folder / "plan.json";
  std::ofstream(script) << kSearched;
  const auto plan_of = [&](const std::string& stored) {
    const Result plan = run({"plan", script, "--ranks", "2", "--json", file, "--", stored});
    EXPECT_EQ(plan.status, 0) << plan.err;
    nlohmann::json found = nlohmann::json::parse(std::ifstream(file))["plans"][0];
    // The search itself takes some memory on rank 0, before the steps.
    for (nlohmann::json& kind : found["kinds"]) {
      for (const char* of_run : {"peak", "resident"}) kind.erase(of_run);
    }
    return found;
  };

  const nlohmann::json searched = plan_of(plans);
  EXPECT_FALSE(std::filesystem::exists(plans));
  const Result trained = run({"run", script, "--ranks", "2", "--backend", "threads", "--", plans});
  ASSERT_EQ(trained.status, 0) << trained.err;
  ASSERT_TRUE(std::filesystem::exists(plans + "/Sequential/plan.json"));
  const nlohmann::json loaded = plan_of(plans);

  EXPECT_GT(searched["kinds"][0]["peak_of_step"], 0);
  EXPECT_EQ(searched["kinds"], loaded["kinds"]);
  EXPECT_EQ(searched["of_rank"], loaded["of_rank"]);
}

// Messages of threads and of processes take other times.
TEST_F(StoredPlans, X14_APlanForOneBackendIsNotThatOfAnother) {
  std::string text = kSearched;
  text.replace(text.find("\"h100\""), 6, "arg[2], measure = 0");
  const std::string file = script(text), plans = path("plans");
  const Result trained = run({"run", file, "--ranks", "2", "--backend", "threads", "--", plans, here()});
  ASSERT_EQ(trained.status, 0) << trained.err;

  const auto plan_for = [&](const std::string& backend) {
    return run(
        {"plan", file, "--ranks", "2", "--machine", here(), "--no-measure", "--backend", backend, "--", plans, here()});
  };
  EXPECT_EQ(plan_for("threads").status, 0);
  const Result other = plan_for("mpi");
  EXPECT_EQ(other.status, 1) << other.out;
  EXPECT_THAT(other.err, ::testing::HasSubstr("holds a plan of something else: 'backend' was threads, is mpi"));
}

TEST(Plans, X14_ARealRunOfAScriptThatSearchesIsChecked) {
  const testing::Folder folder;
  const std::string script = folder / "search.lua";
  std::ofstream(script) << kSearched;

  const Result plan = run({"plan", script, "--ranks", "1,2,3", "--check", "--check-steps", "2"});

  EXPECT_EQ(plan.status, 0) << plan.err << plan.out;
  EXPECT_THAT(plan.out, ::testing::HasSubstr("a real run of 3 rank threads here: every rank sends what is planned"));
}

}  // namespace
}  // namespace moonhalo::scripting::test_plans
