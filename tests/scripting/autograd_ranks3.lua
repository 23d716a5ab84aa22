-- SPDX-License-Identifier: Apache-2.0
-- Recomputed segments, and what a plan can say beside placements.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local nn = mh.nn
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end

function tests.test_checkpoint_gives_the_same_gradients()
  mh.manual_seed(3)
  local full, w0 = mh.randn({7, 4}, kF64), mh.randn({4, 4}, kF64)
  local function train(input, recompute)
    mh.manual_seed(5)
    local x, w = input:detach():requires_grad_(), w0:detach():requires_grad_()
    local runs = 0
    local function block(a, slope, b)
      runs = runs + 1
      return mh.dropout(mh.linear(a, w):tanh() * slope, 0.5, true), a:sum(0) + b
    end
    local h, total = recompute(block, x, 2.5, w)
    local y, again = recompute(block, h, 0.5, w)
    ;(y:square():sum() + (total * again):sum()):backward()
    return {plain(y:detach()), plain(x.grad), plain(w.grad)}, runs
  end
  local function call(fn, ...) return fn(...) end
  for _, input in ipairs {full, mh.distribute_tensor(full, mesh, {S(0, {4, 0, 3})})} do
    local expected, once = train(input, call)
    local found, twice = train(input, mh.checkpoint)
    for i, value in ipairs(expected) do testing.assert_close(found[i], value) end
    testing.assert_equal(once, 2)
    testing.assert_equal(twice, 4)
  end
  testing.assert_error(function() mh.checkpoint(function() return 3 end, full) end,
      "checkpoint: the function gives tensors, result 1 is 3")
  testing.assert_error(function() mh.checkpoint(3, full) end, "a function")
end

local function mlp()
  mh.manual_seed(1)
  return nn.Sequential(nn.Linear(6, 7, kF64), nn.GELU(), nn.Linear(7, 6, kF64))
end

-- V24: gradients where the plan needs them; moves that overlap.
function tests.test_gradient_placements_and_async()
  local x = mh.randn({5, 6}, kF64)
  local single = mlp()
  single(x):square():sum():backward()
  local expected = single:get_parameter("0.weight").grad
  for _, async in ipairs {false, true} do
    local net = mlp()
    mh.parallelize_module(net, mesh, {
      parameter = {["0.weight"] = {placements = {S(0)}, grad = {R()}}, ["0.bias"] = {S(0)}, ["2.weight"] = {S(1)}},
      forward = {["0.input"] = {{placements = {R()}, async = async}},
    ["2.output"] = {{placements = {R()}, async = async}}}, })
    net(mh.distribute_tensor(x, mesh, {S(0)})):square():sum():backward()
    local gradient = net:get_parameter("0.weight").grad
    testing.assert_equal(tostring(gradient.placements[1]), "Replicate()")
    testing.assert_close(gradient:to_local(), expected)
  end
  testing.assert_error(function()
    mh.parallelize_module(mlp(), mesh, {parameter = {["0.weight"] = {placements = {S(0)}, grads = {R()}}}})
  end, "unknown key 'grads'")
end

-- V25: every rank brings its own block.
function tests.test_model_in_blocks()
  local rank, whole = mh.rank(), mh.arange(0, 42, kF64):reshape(7, 6)
  local starts, ends = {0, 4, 4}, {4, 4, 7}
  local net = nn.Linear(6, 7, {dtype = "float64", bias = false})
  net.weight = nn.Parameter(whole[("%d:%d"):format(starts[rank + 1], ends[rank + 1])]:clone())
  mh.parallelize_module(net, mesh, {parameter = {weight = {S(0)}}}, {is_model_sharded = true})
  testing.assert_equal(table.concat(net.weight:shard_sizes(0), " "), "4 0 3")
  testing.assert_close(net.weight:detach():full_tensor(), whole)
  local x = mh.randn({2, 6}, kF64)
  testing.assert_close(plain(net(x):detach()), x:matmul(whole:t()))
  testing.assert_error(function()
    mh.parallelize_module(mlp(), mesh, {["0"] = mh.ColwiseParallel()}, {is_model_sharded = true})
  end, "is_model_sharded needs a plan of placements")
end

-- V26: what forward makes is plain unless asked.
function tests.test_factories_within_forward()
  local Net = nn.Module:extend("Net")
  local made
  function Net:forward(x)
    made = {mh.zeros(x.shape, kF64), mh.randn(x.shape, kF64)}
    return x + made[1] + made[2]
  end
  local x = mh.distribute_tensor(mh.ones({7, 6}, kF64), mesh, {S(0, {4, 0, 3})})
  local function run(factory)
    mh.manual_seed(9)
    local net = mh.parallelize_module(Net(), mesh, {}, {factory = factory})
    local y = plain(net(x))
    testing.assert_equal(mh.zeros({2}):is_shard_tensor(), false)
    return y
  end
  local expected = run(nil)
  testing.assert_equal(made[1]:is_shard_tensor(), false)
  testing.assert_close(run(true), expected)
  testing.assert_equal(tostring(made[1].placements[1]), "Replicate()")
  testing.assert_close(run {zeros = {S(0, {4, 0, 3})}, randn = S(1)}, expected)
  testing.assert_equal(tostring(made[1].placements[1]), "Shard(0, {4, 0, 3})")
  testing.assert_equal(made[2]:is_shard_tensor(), false)  -- drawn with this state's generator
  testing.assert_error(function() run {empty = {R()}} end, "factory: 'empty' cannot be captured")
end

return tests
