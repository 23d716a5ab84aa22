-- SPDX-License-Identifier: Apache-2.0
-- The tests of fully_shard_units_ranks3.lua on four ranks, and units beside other cuts on meshes of two dims.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local tests = require "fully_shard_units_ranks3"
local nn = mh.nn

local kF64 = {dtype = "float64"}
local kSettings = {{true, true}, {false, true}, {false, false}}

local Block = nn.Module:extend("Block")
function Block:init() self.norm, self.fc1, self.fc2 = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6) end
function Block:forward(x) return x + self.fc2(mh.gelu(self.fc1(self.norm(x)))) end

local function model(op, data, setting, prepare)
  mh.manual_seed(1)
  local net = nn.Sequential(Block(), Block()):double()
  if prepare then net = prepare(net) end
  local options = {mesh = data}
  if setting then
    options = {mesh = data, min_numel = 1, reshard_after_forward = setting[1], reshard_after_backward = setting[2]}
  end
  for _, child in ipairs(net:children()) do mh[op](child, options) end
  return mh[op](net, options)
end

local function train(net, x, passes)
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.05})
  local bytes = mh.comm_stats().bytes
  for _ = 1, 2 do
    opt:zero_grad()
    for _ = 1, passes or 1 do net(x):square():mean():backward() end
    opt:step()
  end
  bytes = mh.comm_stats().bytes - bytes
  local seen = {}
  for name, p in net:named_parameters() do seen[name] = p:detach():full_tensor() end
  return seen, bytes
end

-- Copies over the first dim, blocks over the second.
function tests.test_V15_N32_hybrid_sharding_in_units()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"copies", "blocks"})
  mh.manual_seed(2)
  local x = mh.local_batch(mh.randn({3, 5, 6}, kF64), mesh)
  local expected = train(model("replicate", mesh), x)
  for _, setting in ipairs(kSettings) do
    testing.assert_all_close(train(model("fully_shard", mesh, setting), x), expected)
  end
  -- Sums over the copies wait for the optimizer: with blocks that stay, four passes send what one sends.
  local _, one = train(model("fully_shard", mesh, kSettings[3]), x, 1)
  local _, four = train(model("fully_shard", mesh, kSettings[3]), x, 4)
  testing.assert_equal(four, one)
end

function tests.test_D10_V15_units_beside_tensor_parallelism()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"dp", "tp"})
  mh.manual_seed(3)
  local x = mh.local_batch(mh.randn({2, 5, 6}, kF64))  -- the same on all ranks
  local function divided(net)
    return mh.parallelize_module(net, mesh["tp"], {["*.fc1"] = mh.ColwiseParallel(), ["*.fc2"] = mh.RowwiseParallel()})
  end
  local expected = train(model("replicate", mesh["dp"], nil, divided), x)
  for _, setting in ipairs(kSettings) do
    testing.assert_equal(train(model("fully_shard", mesh["dp"], setting, divided), x), expected)
  end
end

return tests
