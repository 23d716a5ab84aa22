// SPDX-License-Identifier: Apache-2.0
// One plan, a model in Lua and its twin in C++: V04, V09.
#include "moonhalo/engine/model/parallelize.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"
#include "tests/support/ranks.h"

namespace moonhalo::scripting::test_parallelize {
namespace {

namespace nn = torch::nn;

// Builds the model, divides it by the plan PLAN (Lua or a JSON text), and lists every parameter with its placements.
constexpr const char* kScript = R"lua(
  local mh = require "moonhalo"
  local nn = mh.nn
  local net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(5, 7), nn.Linear(7, 5), nn.LayerNorm{5})
  local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"tp"})
  mh.parallelize_module(net, mesh, PLAN)
  local lines = {}
  for name, p in net:named_parameters() do lines[#lines + 1] = name .. " " .. tostring(p.placements[1]) end
  table.sort(lines)
  return table.concat(lines, "\n")
)lua";

std::string placed_by_lua(const CommunicatorPtr& world, const std::string& plan) {
  std::string code = kScript;
  code.replace(code.find("PLAN"), 4, plan);
  Context context;
  context.world = world;
  const auto state = new_state(context);
  EXPECT_EQ(luaL_loadstring(state.get(), code.c_str()), LUA_OK);
  call_traced(state.get(), 0, 1);
  return check_string(state.get(), -1);
}

std::string placed_by_cpp(Communicator& world, const std::string& json) {
  nn::Sequential net(nn::Conv2d(2, 4, 3), nn::Linear(5, 7), nn::Linear(7, 5), nn::LayerNorm(nn::LayerNormOptions({5})));
  parallelize_module(net.ptr(), init_device_mesh(world, "cpu", {world.size()}, {"tp"}), parse_plan(json));
  std::set<std::string> lines;
  for (const auto& p : net->named_parameters())
    lines.insert(p.key() + " " + spec(p.value())->placements()[0].to_string());
  std::string text;
  for (const std::string& line : lines) text += (text.empty() ? "" : "\n") + line;
  return text;
}

struct Case {
  const char* name;
  const char* lua;
  const char* json;
};
const Case kCases[] = {
    {"Styles", R"({["1"] = mh.ColwiseParallel(), ["2"] = mh.RowwiseParallel{output_layouts = mh.Shard(0)}})",
     R"json({"1": "ColwiseParallel", "2": {"style": "RowwiseParallel", "output_layouts": "S(0)"}})json"},
    {"Placements", R"lua({parameter = {["0.*"] = {mh.Shard(0, {1, 0, 3})}, ["1.weight"] = {mh.Shard(-1)}},
                      forward = {["2.input"] = {{mh.Replicate()}}}})lua",
     R"json({"parameter": {"0.*": "S(0, {1, 0, 3})", "1.weight": ["Shard(-1)"]}, "forward": {"2.input": [["R"]]}})json"},
};
class OnePlan : public ::testing::TestWithParam<Case> {};

TEST_P(OnePlan, V04PlacesAlikeInLuaAndCpp) {
  moonhalo::testing::on_ranks(3, [](Communicator& world) {
    const std::string lua = placed_by_lua(world.shared_from_this(), GetParam().lua),
                      cpp = placed_by_cpp(world, GetParam().json);

    EXPECT_NE(lua.find("Shard"), std::string::npos);
    EXPECT_EQ(lua, cpp);
  });
}
INSTANTIATE_TEST_SUITE_P(Cases, OnePlan, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moonhalo::scripting::test_parallelize
