-- SPDX-License-Identifier: Apache-2.0
-- Ready plans by structure (V08): models that they divide train as whole ones do. The same file runs on 2 and 3 ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.model_runs"
local nn = mh.nn

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"ranks"})
local kF64 = {dtype = "float64"}
local tests = {}

local MLP = nn.Module:extend("MLP")
function MLP:init()
  self.enter = nn.Linear(5, 11)
  self.middle = nn.Linear(11, 7)
  self.leave = nn.Linear(7, 3)
end
function MLP:forward(x) return self.leave(self.middle(self.enter(x):gelu()):gelu()) end

local mlp = {
  network = function() return MLP():double() end,
  sample = function() return {x = mh.randn({4, 5}, kF64), y = mh.randn({4, 3}, kF64)} end,
  predict = function(net, samples) return net(samples.x) end,
}

local kModels = {
  unet2d = require("support.unet").flat, unet3d = require("support.unet").deep, vit = require("support.vit").all,
  dit = require("support.dit").odd, convnext = require "support.convnext", fno = require "support.fno", mlp = mlp,
}

for name, model in pairs(kModels) do
  tests["test_V08_" .. name .. "_trains_as_the_whole"] = function()
    runs.same_as_plain(model, {divide = function(net) mh.parallelize_module(net, mesh, mh.plan.zoo(name, net)) end})
  end
end

--- The names of parameters that are in blocks.
local function divided(name)
  local net = kModels[name].network()
  mh.parallelize_module(net, mesh, mh.plan.zoo(name, net))
  local names = {}
  for parameter, tensor in net:named_parameters() do
    if tensor.placements[1]:is_shard() then names[#names + 1] = parameter .. " " .. tensor.placements[1].dim end
  end
  return names
end

function tests.test_V08_what_is_wide_lies_in_blocks()
  testing.assert_equal(divided "vit", {"blocks.0.mlp.1.weight 0", "blocks.0.mlp.1.bias 0", "blocks.0.mlp.3.weight 1",
    "blocks.1.mlp.1.weight 0", "blocks.1.mlp.1.bias 0", "blocks.1.mlp.3.weight 1"})
  testing.assert_equal(divided "convnext", {"blocks.0.mix.0.weight 0", "blocks.0.mix.0.bias 0",
    "blocks.0.mix.2.weight 1", "blocks.1.mix.0.weight 0", "blocks.1.mix.0.bias 0", "blocks.1.mix.2.weight 1"})
  testing.assert_equal(divided "mlp", {"enter.weight 0", "enter.bias 0", "middle.weight 1"})
  testing.assert_equal(divided "unet2d", {})
  local narrows = nn.Sequential(nn.Conv2d(2, 8, 3), nn.Linear(8, 8), nn.Linear(8, 4))
  testing.assert_equal(mh.plan.zoo("vit", narrows).parameter, nil)
end

function tests.test_V08_fields_stay_cut()
  for _, name in ipairs{"unet2d", "unet3d", "convnext", "fno", "dit"} do
    local model = kModels[name]
    local net = model.network()
    mh.parallelize_module(net, mesh, mh.plan.zoo(name, net))

    local y = model.predict(net, model.sample())

    testing.assert_equal(y.placements[1]:is_shard() and y.placements[1].dim, 2)
  end
end

function tests.test_V08_a_plan_can_be_printed_and_changed()
  local plan = mh.plan.zoo("mlp", MLP())
  testing.assert_equal({tostring(plan.enter), tostring(plan.middle)}, {"ColwiseParallel()", "RowwiseParallel()"})
  local printed = tostring(mh.plan.new(mh.plan.zoo("convnext", kModels.convnext.network())))
  assert(printed:find('"blocks.0.mix.2.weight": [', 1, true) and printed:find('"input": [', 1, true), printed)
  plan.leave = mh.ColwiseParallel{output_layouts = mh.Replicate()}
  local net = mh.parallelize_module(mlp.network(), mesh, plan)
  testing.assert_equal(net.leave.weight.placements[1].dim, 0)
end

function tests.test_V08_structures_that_are_not_there()
  local net = MLP()
  testing.assert_error(function() mh.plan.zoo("unet2", net) end,
      "plan.zoo: unknown structure 'unet2'; did you mean 'unet2d'")
  testing.assert_error(function() mh.plan.zoo("vit", net) end,
    "plan.zoo: 'vit' needs a Conv2d, which this MLP lacks\n  have  Linear, MLP, Module\n" ..
        "  fix   choose the structure that it has")
  testing.assert_error(function() mh.plan.zoo("mlp", nn.Linear(3, 4)) end, "plan.zoo: 'mlp' needs two Linears in a row")
  local two_heads = nn.ModuleList{nn.Linear(3, 4), nn.Linear(5, 2)}
  testing.assert_error(function() mh.plan.zoo("mlp", two_heads) end, "plan.zoo: 'mlp' needs two Linears in a row")
  testing.assert_error(function() mh.plan.zoo("mlp") end, "plan.zoo: expected an nn.Module, got nil")
end

return tests
