// SPDX-License-Identifier: Apache-2.0
// Dry runs compute no values of large tensors, and messages of other ranks are zeros there: nothing may judge them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/scripting/run_program.h"
#include "tests/support/folder.h"

namespace moonhalo::scripting::test_plan_values {
namespace {

using ::testing::HasSubstr;

// Three steps of a net on blocks. `set_up` comes before the steps, and `step` takes a step from `loss` on.
std::string training(const std::string& set_up, const std::string& step) {
  return R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local net = nn.Sequential(nn.Conv2d(3, 16, 3, {padding = 1}), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 1, 1))
mh.distribute_module(net, mesh)
local x = mh.distribute_tensor(mh.rand{1, 3, 64 * mh.world_size(), 64}, mesh, {mh.Shard(2)})
local optimizer = mh.optim.SGD(net:parameters(), {lr = 0.1})
)" + set_up +
         R"(
for i = 1, 3 do
  optimizer:zero_grad()
  local loss = net(x):square():mean()
  )" + step +
         "\nend\n";
}

class PlanValues : public ::testing::Test {
 protected:
  // Plans a script, which must be all right and say nothing.
  std::string planned(const std::string& text, std::vector<std::string> more = {"--ranks", "4"}) const {
    const std::string script = folder_ / "train.lua";
    std::ofstream(script) << text;
    more.insert(more.begin(), {"plan", script});
    const Result plan = run(more);
    EXPECT_EQ(plan.status, 0) << plan.err;
    EXPECT_EQ(plan.err, "");
    return plan.out;
  }

 private:
  moonhalo::testing::Folder folder_;
};

TEST_F(PlanValues, X14_NoNanIsFound) {
  const std::string step = "loss:backward() optimizer:step()";
  EXPECT_THAT(planned(training("mh.detect_nan(true)", step)), HasSubstr(", step 3"));
  EXPECT_THAT(planned(training("mh.detect_nan(true)", step), {"--ranks", "1"}), HasSubstr(", step 3"));
}

// A rank that gets zeros in the place of what others send divides by zero.
TEST_F(PlanValues, X14_NoNanOfZerosIsFound) {
  planned(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
mh.detect_nan(true)
local Divide = mh.nn.Module:extend("Divide")
function Divide:forward(x)
  local whole = x:full_tensor()
  return whole / whole
end
Divide()(mh.distribute_tensor(mh.ones{8}, mesh, {mh.Shard(0)}))
)");
}

TEST_F(PlanValues, X14_StepsWithAGradScalerAreMade) {
  const std::string out =
      planned(training("local scaler = mh.GradScaler()",
                       "scaler:scale(loss):backward() assert(scaler:step(optimizer)) scaler:update()"));
  EXPECT_THAT(out, HasSubstr(", step 3"));
}

TEST_F(PlanValues, X14_NoTrainingEndsEarly) {
  const std::string out =
      planned(training("local run = mh.run{name = 'small', folder = 'runs', stop = {by = 'loss', patience = 1}}\n"
                       "run:resume{net = net, opt = optimizer}",
                       "loss:backward() optimizer:step() if run:epoch_done{loss = loss:item()} then break end"));
  EXPECT_THAT(out, HasSubstr(", step 3"));
}

TEST_F(PlanValues, X14_NoLoggedNumberIsWarnedOf) {
  planned(training("",
                   "mh.log{step = i, loss = loss:item(), digits = math.log(1 - loss:item())}\n"
                   "loss:backward() optimizer:step()"));
}

// Blocks of at most 16 KiB have memory, in which there are zeros where other ranks would send something.
TEST_F(PlanValues, X14_ASmallLossIsOneOnAllRanks) {
  const std::string set_up = R"(
x = mh.distribute_tensor(mh.rand{1, 3, 3, 8}, mesh, {mh.Shard(2)})
local plain = nn.Linear(8, 1)
mh.replicate(plain, {mesh = mesh})
local wide = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
if arg[1] == "stored" then
  mh.fully_shard(wide, {mesh = mesh})
else
  mh.parallelize_module(wide, mesh, {parameter = {["0.weight"] = {mh.Shard(0)}, ["1.weight"] = {mh.Shard(1)}}})
end)";
  const std::string step = R"(
  local sample = mh.rand({16, 8}, {mesh = mesh, placements = {mh.Shard(0)}})
  for _, one in ipairs{loss, plain(mh.rand{4, 8}):square():mean(), wide(sample):square():mean()} do
    assert(one:item() == 1 and one:detach():item() == 1, one:item())
    one:backward()
  end
  optimizer:step())";
  planned(training(set_up, step));
  planned(training(set_up, step), {"--ranks", "1"});
  planned(training(set_up, step), {"--ranks", "4", "--", "stored"});
}

TEST_F(PlanValues, X14_NoIndexIsBeyondATensor) {
  planned(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"all"})
local function cut(x, dim) return mh.distribute_tensor(x, mesh, {mh.Shard(dim)}) end
local numbers = mh.zeros({4000}, {dtype = "int64"})
mh.unravel_index(numbers, {20, 30})
mh.cross_entropy(cut(mh.rand{64, 16, 100}, 1), mh.zeros({64, 100}, {dtype = "int64"}))
local near = cut(mh.zeros({1, 40000, 1}, {dtype = "int64"}), 1)
mh.neighbor_offsets(cut(mh.rand{1, 40000, 3}, 1), cut(mh.rand{1, 1, 3}, 1), near)
)");
}

TEST_F(PlanValues, X14_NoLatitudeIsUneven) {
  planned(R"(
local mh = require "moonhalo"
mh.diagnostics.sphere_divergence(mh.rand{6000, 8}, mh.rand{6000, 8}, mh.linspace(-89, 89, 6000))
)");
}

TEST_F(PlanValues, X14_NoValueIsMissing) {
  planned(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local data = mh.data.from_tensors({u = mh.rand{6, 512, 512}}, {dims = {"time", "y", "x"}})
data:add_field("twice", {from = "u", make = function(u) return u * 2 end})
local loader = data:windows{inputs = {"twice"}}:loader{mesh = mesh, cut = {y = "rows"}, batch = 1}
for batch in loader:batches() do assert(batch.inputs.shape[3] == 512) end
)");
}

// Their values decide what a script does: how often it repeats, and what it selects.
TEST_F(PlanValues, X14_ParametersThatAreNotTrainedKeepTheirValues) {
  planned(R"(
local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init()
  self.count = nn.Parameter(mh.tensor{3.0}, false)
  self.mask = nn.Parameter(mh.tensor{true, false, true}, false)
  self:register_parameter("steps", mh.tensor{5})
end
local net = Net()
assert(net.count:item() == 3.0 and net.steps:item() == 5)
assert(mh.masked_select(mh.ones{3}, net.mask).shape[1] == 2)
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
mh.distribute_module(net, mesh)
assert(net.count:item() == 3.0 and net.steps:item() == 5, "placed on a mesh")
)");
}

// Rank 0 alone has samples of its own. Other ranks have zeros, of which a loss must not be computed.
TEST_F(PlanValues, X14_ParametersThatAreTrainedLaterHaveNoValues) {
  for (const char* way : {"net.w:requires_grad_(true)", "net.w:requires_grad_()", "net.w.requires_grad = true",
                          "net:requires_grad_(true)", "net.w:requires_grad_(true) place()"}) {
    planned(R"(
local mh = require "moonhalo"
local nn = mh.nn
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local Net = nn.Module:extend("Net")
function Net:init() self.w = nn.Parameter(mh.ones{8} * 3, false) end
function Net:forward(x) return x * self.w end
local net = Net()
local function place() if not net.w:is_shard_tensor() then mh.distribute_module(net, mesh) end end
if not ([[)" +
            std::string(way) +
            R"(]]):find "place" then place() end
)" + way + R"(
local x = mh.distribute_tensor(mh.rand{4 * mh.world_size(), 8}, mesh, {mh.Shard(0)})
local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
for i = 1, 3 do
  opt:zero_grad()
  local y = net(x)
  local loss = (y / y:sum()):square():mean()
  loss:backward()
  opt:step()
  assert(loss:item() == loss:item(), "the loss is NaN")
end
)");
  }
}

TEST_F(PlanValues, X14_NoDerivativeIsWrong) {
  planned(R"(
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
local x = mh.distribute_tensor(mh.rand({6}, {dtype = "float64"}), mesh, {mh.Shard(0)})
mh.gradcheck(mh.sin, {x:requires_grad_(true)})
)");
}

}  // namespace
}  // namespace moonhalo::scripting::test_plan_values
