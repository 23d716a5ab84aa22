-- SPDX-License-Identifier: Apache-2.0
-- Y16: optimizers written in Lua on parameters that are cut, and fully sharded, equal those of plain parameters. Their
-- states go into a checkpoint and on to another cut.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local golden = require "golden.optimizers"
local own_path = require "support.own_path"
local runs = require "support.own_optimizers"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"dp"})
local nn = mh.nn
local kF64 = {dtype = "float64"}
local tests = {}

local function close(name, a, b)
  local tolerance = name == "Muon" and 1e-6 or 1e-11
  testing.assert_close(a:full_tensor(), b, {rtol = tolerance, atol = tolerance})
end

local function cut(x, placement)
  return mh.distribute_tensor(x:detach(), mesh, {placement}):detach():requires_grad_(true)
end

for i, case in ipairs(golden.optimizers) do
  local name, options = case[1], case[2]

  tests[("test_Y16_%s_%d_on_blocks"):format(name, i)] = function()
    local w, b = runs.problem()
    local before_w, before_b = w:detach():clone(), b:detach():clone()
    runs.train(runs.make(name, options, w, b), w, b, 6)
    for _, places in ipairs {{mh.Shard(0), mh.Shard(0)}, {mh.Shard(0, {3, 0, 1}), mh.Replicate()},
      {mh.Shard(1, {0, 1, 2}), mh.Shard(0, {2, 1, 0})}} do
      local cut_w, cut_b = cut(before_w, places[1]), cut(before_b, places[2])
      local opt = runs.make(name, options, cut_w, cut_b)
      runs.train(opt, cut_w, cut_b, 3)
      local path = own_path("rules_" .. i)
      mh.checkpoint.save(path, {optimizer = opt})
      local next_w, next_b = cut(cut_w:full_tensor(), mh.Shard(0, {1, 3, 0})), cut(cut_b:full_tensor(), mh.Shard(0))
      local again = runs.make(name, options, next_w, next_b)
      mh.checkpoint.load(path, {optimizer = again})
      runs.train(again, next_w, next_b, 3)
      close(name, next_w:detach(), w:detach())
      close(name, next_b:detach(), b:detach())
    end
  end
end

local function net()
  mh.manual_seed(7)
  return nn.Sequential(nn.Linear(5, 8, {bias = false}), nn.Tanh(), nn.Linear(8, 3, {bias = false})):double()
end

--- Trains on the rows of every rank, or on all rows.
local function fit(model, opt, own)
  for step = 1, 4 do
    mh.manual_seed(step)
    local x, y = mh.randn({6, 5}, kF64), mh.randn({6, 3}, kF64)
    if own then x, y = mh.distribute_tensor(x, mesh, {mh.Shard(0)}), mh.distribute_tensor(y, mesh, {mh.Shard(0)}) end
    opt:zero_grad()
    mh.mse_loss(model(x), y):backward()
    opt:step()
  end
  local found = {}
  for name, parameter in model:named_parameters() do found[name] = parameter:detach():full_tensor() end
  return found
end

function tests.test_Y16_fully_sharded_parameters()
  local tried = {}
  for _, case in ipairs(golden.optimizers) do
    local name = case[1]
    if not tried[name] then
      tried[name] = true
      local plain, sharded = net(), net()
      local options = {lr = 0.05}
      local expected = fit(plain, mh.optim[name](plain:parameters(), options), false)
      mh.fully_shard(sharded, {mesh = mesh})
      local opt = mh.optim[name](sharded:parameters(), options)
      local have = fit(sharded, opt, true)
      for key, value in pairs(expected) do close(name, have[key], value) end
    end
  end
end

return tests
