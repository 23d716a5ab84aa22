-- SPDX-License-Identifier: Apache-2.0
-- Mistakes in training on several ranks: one clear message, the same on all of them.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"dp"})
local tests = {}

local function refused(problem, fn, ...)
  testing.assert_error(function(...) return fn(...) end, problem, ...)
  mh.barrier()
end
local function on_rank(rank, value, other)
  if mh.rank() == rank then return value end
  return other
end
local function linear() return nn.Linear(60, 40) end

function tests.test_V15_meshes_that_are_none()
  for _, op in ipairs {"fully_shard", "replicate"} do
    refused(op .. ": mesh is not a mesh but 'dp'\n  have  dp\n  fix   " .. op .. "(net, {mesh = mesh[\"dp\"]})",
        function() mh[op](linear(), {mesh = "dp"}) end)
    refused(op .. ": mesh is not a mesh but Placement\n  have  Shard(0)",
        function() mh[op](linear(), {mesh = mh.Shard(0)}) end)
    refused("no mesh dimension named \"dq\"; did you mean 'dp'?", function() mh[op](linear(), {mesh = mesh["dq"]}) end)
  end
end

function tests.test_N02_batches_that_differ_on_one_rank()
  local net = mh.fully_shard(linear(), {mesh = mesh})
  local double, cube = {dtype = on_rank(1, "float64", "float32")}, on_rank(2, {2, 3, 60}, {2, 60})
  refused("the blocks of ranks 0 and 1 differ in dtype or number of dims\n  have  Float of 2 dims; Double of 2\n" ..
    "  fix   give blocks", function() net(mh.zeros({2, 60}, double)) end)
  refused("the blocks of ranks 0 and 2 differ in dtype or number of dims\n  have  Float of 2 dims; Float of 3",
      function() net(mh.zeros(cube)) end)
  refused("rank 1 has 61 along dim 1, its place in the mesh needs 60",
      function() net(mh.zeros{2, on_rank(1, 61, 60)}) end)
  local y = net(mh.zeros{on_rank(1, 0, 2), 60})  -- no rows are fine
  testing.assert_equal(y:shard_sizes(0)[2], 0)
end

function tests.test_N33_N34_without_gradients()
  local net = mh.fully_shard(linear(), {mesh = mesh})
  local opt = mh.build_optimizer(net, mh.optim.SGD, {lr = 0.1})
  local before = net.weight:full_tensor():clone()
  testing.assert_equal(opt:clip_gnorm(1.0):item(), 0.0)
  opt:scale_grads(0.5)
  opt:step()
  testing.assert_equal(net.weight:full_tensor(), before)
end

function tests.test_N30_what_is_no_optimizer()
  local net = mh.fully_shard(linear(), {mesh = mesh})
  refused("build_optimizer: expected an nn.Module, got {Tensor float32 [40, 60], Tensor float32 [40]}\n" ..
      "  fix   mh.build_optimizer(net,", function() mh.build_optimizer(net:parameters(), mh.optim.SGD, {lr = 1}) end)
  refused("build_optimizer: expected a class of optimizers, got nil",
      function() mh.build_optimizer(net, nil, {lr = 1}) end)
end

function tests.test_N31_cuts_that_two_calls_want()
  -- A parameter that the mesh dim cuts already stays as it is, whatever comes after.
  local net = mh.parallelize_module(linear(), mesh, {parameter = {["weight"] = {mh.Shard(0)}}})
  mh.fully_shard(net, {mesh = mesh})
  testing.assert_equal(tostring(net.weight.placements[1]):find("^Shard") ~= nil, true)
  refused("Stored(2): dim 2 is out of range", function() mh.distribute_tensor(mh.zeros{4, 4}, mesh, {mh.Stored(2)}) end)
  refused("block sizes add up to 5, the tensor has 4", function() mh.distribute_tensor(mh.zeros{4, 4}, mesh,
      {mh.Stored(0, {1, 1, 3})}) end)
end

local folder = require "support.own_path"

function tests.test_X16_checkpoints_from_the_future_and_what_cannot_be_saved()
  local path = folder("future")
  local net = linear()
  mh.checkpoint.save(path, {model = net})
  local before = net.weight:clone()
  mh._files.on_first_rank(function()
    local saved = mh.json.load(path .. "/checkpoint.json")
    saved.format = 4
    mh._files.write("test", path .. "/checkpoint.json", mh.json.encode(saved))
  end)
  refused("has format 4, this reads 1 to 3", function() mh.checkpoint.load(path, {model = net}) end)
  testing.assert_equal(mh.equal(net.weight, before), true)
  refused("the entry 'f' is a function, which cannot be saved",
      function() mh.checkpoint.save(folder("function"), {f = print}) end)
  mh._files.on_first_rank(function()
    for _, name in ipairs {"future", "function"} do mh._checkpoint_files.discard("test", folder(name)) end
  end)
end

return tests
