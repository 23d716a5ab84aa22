-- SPDX-License-Identifier: Apache-2.0
-- Y16: mh.GradScaler has PyTorch's history of scales (golden/grad_scaler.py) in 200 steps with gradients that are not
-- finite, on plain, cut and fully sharded parameters, and on any number of ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local golden = require "golden.grad_scaler"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"dp"})
local nn = mh.nn
local tests = {}

local function input(step)
  local x = mh.arange(1, 7, kF64) * (1 + step % 3)
  local planted
  if step % 17 == 5 then planted = math.huge elseif step % 41 == 7 then planted = 0 / 0 end
  if planted then x[step % 6] = planted end
  return x
end

local kOptions = {init_scale = 1024.0, growth_factor = 2.0, backoff_factor = 0.25, growth_interval = 6}

--- Scales as powers of 2, and the parameter of `loss` at the end. The scaler is made again from its state in step 100.
local function history(w, loss)
  local opt, scaler, powers = mh.optim.SGD({w}, {lr = 0.01, momentum = 0.5}), mh.GradScaler(kOptions), {}
  for step = 0, 199 do
    opt:zero_grad()
    scaler:scale(loss(input(step)):square():sum() * 0.01):backward()
    scaler:step(opt)
    scaler:update()
    powers[step + 1] = math.tointeger(math.log(scaler:get_scale(), 2))
    if step == 100 then
      local later = mh.GradScaler()
      later:load_state_dict(scaler:state_dict())
      scaler = later
    end
  end
  return powers, w:detach():full_tensor()
end

--- Six elements in blocks: four on the first rank, two on the last, none between.
local function sizes()
  local list, ranks = {}, mh.world_size()
  for rank = 1, ranks do list[rank] = 0 end
  list[1] = 4
  list[ranks] = list[ranks] + 2
  return list
end

local function compare(powers, parameters)
  testing.assert_equal(#powers, 200)
  testing.assert_equal(powers, golden.scales)
  testing.assert_close(parameters, mh.tensor(golden.parameters, kF64), {rtol = 1e-12})
end

function tests.test_Y16_scales_are_those_of_pytorch()
  for _, placement in ipairs {false, mh.Shard(0), mh.Shard(0, sizes()), mh.Replicate()} do
    local w = mh.arange(0, 6, kF64)
    if placement then w = mh.distribute_tensor(w, mesh, {placement}):detach() end
    w:requires_grad_(true)
    compare(history(w, function(x) return w * x end))
  end
end

local Scale = nn.Module:extend("Scale")
function Scale:init() self.w = nn.Parameter(mh.arange(0, 6, kF64)) end
function Scale:forward(x) return self.w * x end

function tests.test_Y16_scales_of_fully_sharded_parameters_are_those_of_pytorch()
  local net = mh.fully_shard(Scale(), {mesh = mesh})
  compare(history(net.w, function(x) return net(mh.distribute_tensor(x, mesh, {mh.Shard(0, sizes())})) end))
end

return tests
