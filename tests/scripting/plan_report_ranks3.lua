-- SPDX-License-Identifier: Apache-2.0
-- Strings about divided modules, the same on every rank (V16): compared with the files of golden/.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"
local nn = mh.nn

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"tp"})
local kF64 = {dtype = "float64"}
local S, R, P = mh.Shard, mh.Replicate, mh.Partial
local tests = {}

local MLP = nn.Module:extend("MLP")
function MLP:init()
  self.fc1 = nn.Linear(6, 7)
  self.norm = nn.BatchNorm1d(7)
  self.fc2 = nn.Linear(7, 6, {bias = false})
end
function MLP:forward(x, scale) return self.fc2(self.norm(self.fc1(x)):gelu()) * scale end

local Net = nn.Module:extend("Net")
function Net:init() self.blocks = nn.ModuleList{MLP(), MLP()} end
function Net:forward(x)
  for _, block in self.blocks:each() do x = block(x, 2) end
  return x
end

local Halved = {apply = function() end}

local function divided()
  mh.manual_seed(5)
  local net = Net():double()
  net.blocks[1].fc1.bias:requires_grad_(false)
  mh.parallelize_module(net.blocks[1], mesh, {["fc?"] = mh.ColwiseParallel{output_layouts = R()}, norm = Halved})
  return mh.parallelize_module(net, mesh, {
    parameter = {["blocks.0.fc1.*"] = {placements = {S(0)}},
    ["blocks.0.fc2.weight"] = {placements = {S(1)}, grad = {R()}}},
    forward = {input = {{S(0)}}, ["blocks.0.input"] = {x = {R()}}, ["blocks.0.output"] = {{S(0)}}},
  })
end

local function golden(name, text)
  local path = arg[0]:gsub("[^/]*$", "") .. "golden/" .. name .. ".txt"
  local file = assert(io.open(path))
  local expected = file:read("a")
  file:close()
  if text .. "\n" ~= expected then error(("'%s' has another text\n%s"):format(path, text), 0) end
end

function tests.test_V16_parameters() golden("repr_params", mh.plan.repr_params(divided())) end

function tests.test_V16_plain_parameters()
  golden("repr_params_plain", mh.plan.repr_params(MLP()))
end

function tests.test_V16_gradients_to_be_summed()
  local net = mh.parallelize_module(MLP():double(), mesh, {parameter = {["fc1.weight"] = {S(0)}},
      forward = {input = {x = {S(0)}}}})
  testing.assert_equal(mh.plan.list_grad_sync(net), "MLP: 0 of 0 gradients are to be summed")
  net(mh.ones({301, 6}, kF64), 2):square():sum():backward()

  local text, names = mh.plan.list_grad_sync(net)

  golden("list_grad_sync", text)
  testing.assert_equal(#names > 0, true)
  for _, name in ipairs(names) do testing.assert_equal(net:get_parameter(name).grad.placements, {P()}) end
  mh.finish_grad_sync(net)
  testing.assert_equal(mh.plan.list_grad_sync(net), "MLP: 0 of 5 gradients are to be summed")
end

function tests.test_V16_plans()
  golden("plan_dump", mh.plan.dump(divided()))
  testing.assert_equal(mh.plan.dump(MLP()), "MLP was not divided by a plan")
end

-- The dumped plan places as the one with patterns and styles did.
function tests.test_V16_a_dumped_plan_is_a_plan()
  local styles = {fc1 = mh.ColwiseParallel(), fc2 = mh.RowwiseParallel()}
  local net = mh.parallelize_module(MLP():double(), mesh, styles)
  local json = mh.plan.dump(net):match("\n({.*})$")
  local path = own_path("plan_dump.json")
  if mh.rank() == 0 then
    local file = assert(io.open(path, "w"))
    file:write(json)
    file:close()
  end
  mh.barrier()

  local again = mh.parallelize_module(MLP():double(), mesh, mh.plan.load(path))

  testing.assert_equal(mh.plan.repr_params(again), mh.plan.repr_params(net))
  testing.assert_equal(mh.plan.dump(again), mh.plan.dump(net))
end

function tests.test_what_is_no_module()
  testing.assert_error(function() mh.plan.dump(3) end, "plan.dump: expected an nn.Module, got 3")
  testing.assert_error(function() mh.plan.repr_params{} end, "plan.repr_params: expected an nn.Module, got {}")
end

function tests.test_V15_experts_are_refused_with_a_remedy()
  testing.assert_error(function() mh.expert_parallel(MLP(), mesh) end,
    "expert_parallel: NotImplementedError: expert parallelism is not part of Moonhalo")
end

return tests
