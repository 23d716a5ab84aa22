-- SPDX-License-Identifier: Apache-2.0
-- The tests of fully_shard_ranks3.lua on four ranks, and data parallelism beside other cuts on meshes of two dims.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local tests = require "fully_shard_ranks3"
local runs = require "support.training_runs"
local nn = mh.nn

local new, train = runs.new, runs.train
local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate

local Block = nn.Module:extend("Block")
function Block:init() self.norm, self.fc1, self.fc2 = nn.LayerNorm(6), nn.Linear(6, 10), nn.Linear(10, 6) end
function Block:forward(x) return x + self.fc2(mh.gelu(self.fc1(self.norm(x)))) end

local Net = nn.Module:extend("Net")
function Net:init() self.blocks, self.head = nn.ModuleList{Block(), Block()}, nn.Linear(6, 3) end
function Net:forward(x)
  for _, block in ipairs(self.blocks:children()) do x = block(x) end
  return self.head(x)
end

local Field = nn.Module:extend("Field")
function Field:init()
  self.conv, self.norm, self.head = nn.Conv2d(2, 6, 3, {padding = 1}), nn.GroupNorm(2, 6),
      nn.Conv2d(6, 3, 3, {padding = 1})
end
function Field:forward(x) return self.head(mh.gelu(self.norm(self.conv(x)))) end

local function styles()
  return {["blocks.*.fc1"] = mh.ColwiseParallel(), ["blocks.*.fc2"] = mh.RowwiseParallel()}
end

local function units(net, op, options)
  for _, child in ipairs((net:has("blocks") and net.blocks or net):children()) do mh[op](child, options) end
  return mh[op](net, options)
end

local function rows_of(x, mesh, rows)
  local begin = 0
  for place = 1, mesh:coordinate("dp") do begin = begin + rows[place] end
  return x:narrow(0, begin, rows[mesh:coordinate("dp") + 1])
end

-- D10: tensor parallel in every group of data parallel ranks. N34: the norm over both.
function tests.test_D10_V15_N34_beside_tensor_parallelism()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"dp", "tp"})
  mh.manual_seed(2)
  local x = mh.randn({5, 4, 6}, kF64)
  local expected = train(new(Net), x, 0.3)
  local function run(op, options)
    options.mesh = mesh["dp"]
    local net = mh.parallelize_module(new(Net), mesh["tp"], styles())
    return train(units(net, op, options), rows_of(x, mesh, {3, 2}), 0.3), net
  end
  local sharded, net = run("fully_shard", {min_numel = 1})

  testing.assert_all_close(sharded, expected)
  testing.assert_all_close(run("replicate", {}), expected)
  testing.assert_equal(tostring(net.blocks[0].fc1.weight.placements[1]):sub(1, 9), "Stored(1,")
  testing.assert_equal(tostring(net.blocks[0].fc1.weight.placements[2]):sub(1, 8), "Shard(0,")
  testing.assert_equal(tostring(net.blocks[0].fc2.weight.placements[1]):sub(1, 9), "Stored(0,")

  net = mh.parallelize_module(new(Net), mesh["tp"], styles())
  mh.fully_shard(net.blocks[0], {mesh = mesh["dp"], min_numel = 1})
  testing.assert_error(function() return net.head.weight + mh.zeros({3, 6}, kF64)
    + mh.lift(net.head.weight, mesh, {R()}) end,
    "fix   fully_shard or replicate the module over the dims that mesh(2: tp) lacks, or lift the tensor to the whole "
        .. "mesh")
end

-- S22: every data parallel group has its fields cut over its domain.
function tests.test_S22_beside_domains()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"dp", "domain"})
  mh.manual_seed(2)
  local x = mh.randn({5, 2, 7, 3}, kF64)
  local expected = train(new(Field), x, 0.3)
  for _, rows in ipairs {{3, 2}, {5, 0}} do
    local mine = mh.distribute_tensor(rows_of(x, mesh, rows), mesh["domain"], {S(2, {5, 2})})
    local sharded = train(units(new(Field), "fully_shard", {mesh = mesh["dp"], min_numel = 1}), mine, 0.3)
    testing.assert_all_close(sharded, expected)
    testing.assert_all_close(train(units(new(Field), "replicate", {mesh = mesh["dp"]}), mine, 0.3), expected)
  end
end

-- Blocks over the last dim, copies over the first.
function tests.test_V15_hybrid_sharding()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"copies", "blocks"})
  mh.manual_seed(2)
  local x = mh.randn({7, 6}, kF64)
  local net = units(new(Net), "fully_shard", {mesh = mesh, min_numel = 1})
  local begin, rows = ({0, 3, 5, 5})[mesh.rank + 1], ({3, 2, 0, 2})[mesh.rank + 1]

  testing.assert_all_close(train(net, x:narrow(0, begin, rows), 0.3), train(new(Net), x, 0.3))
  testing.assert_equal(net.head.weight.placements[1], R())
  testing.assert_equal(net.head.weight.placements[2]:is_stored(), true)
  testing.assert_equal(net(x:narrow(0, begin, rows)).placements, {S(0, {5, 2}), S(0, {3, 2, 0, 2})})
end

function tests.test_lift_a_tensor_of_a_slice()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"dp", "tp"})
  mh.manual_seed(4)
  local x = mh.randn({5, 6}, kF64)
  local mine = mh.distribute_tensor(x, mesh["tp"], {S(1, {4, 2})})
  local same = mh.lift(mine, mesh, {R()})
  testing.assert_equal(same.placements, {R(), S(1, {4, 2})})
  testing.assert_equal(same:full_tensor(), x)

  local cut = mh.lift(mine:narrow(0, 0, 2 + mesh:coordinate("dp")):requires_grad_(), mesh, {S(0)})
  testing.assert_equal(cut.placements, {S(0, {2, 3}), S(1, {4, 2})})
  testing.assert_equal(cut:full_tensor(), mh.cat{x:narrow(0, 0, 2), x:narrow(0, 0, 3)})
  testing.assert_close(mh.lift(mine, mesh, {mh.Partial()}):full_tensor(), x * 2)

  local leaf = mine:detach():requires_grad_()
  mh.lift(leaf, mesh, {S(0)}):square():sum():backward()
  testing.assert_equal(leaf.grad:full_tensor(), x * 2)

  testing.assert_error(function() mh.lift(mine, mesh, {}) end,
      "lift: 0 placements, mesh(2: tp) lacks 1 dims of mesh(2x2: dp, tp)")
  testing.assert_error(function() mh.lift(mine, mh.init_device_mesh(mh.device(), {4}), {R()}) end, "is not a slice of")
  local first = mh.distribute_tensor(x, mesh["dp"], {S(0)})
  testing.assert_error(function() mh.lift(first, mesh, {S(0)}) end, '"tp" stands behind a dim')
end

return tests
