// SPDX-License-Identifier: Apache-2.0
// N26: plans that one process has made, on the ranks that they are for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

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

}  // namespace
}  // namespace moonhalo::scripting::test_plans
