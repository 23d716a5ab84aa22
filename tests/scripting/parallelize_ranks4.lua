-- SPDX-License-Identifier: Apache-2.0
-- The tests of parallelize_ranks3.lua on four ranks, and plans on a mesh of two dimensions.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local tests = require "parallelize_ranks3"
local nn = mh.nn

local S, R = mh.Shard, mh.Replicate
local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"dp", "tp"})

local function network()
  mh.manual_seed(2)
  return nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 5)):double()
end
local function styles() return {["0"] = mh.ColwiseParallel(), ["2"] = mh.RowwiseParallel()} end

function tests.test_P10_styles_want_a_slice_and_stay_in_it()
  testing.assert_error(function() mh.parallelize_module(network(), mesh, styles()) end,
    "parallel styles are for a mesh of one dimension, got mesh(2x2: dp, tp)")
  local net = mh.parallelize_module(network(), mesh["tp"], styles())
  local x = mh.randn({4, 6}, kF64)
  local before = mh.comm_stats().by_kind.all_reduce
  local y = mh.no_grad(function() return net(x) end)
  local after = mh.comm_stats().by_kind.all_reduce

  testing.assert_close(y, network()(x))
  testing.assert_equal(after.calls - before.calls, 1)
  testing.assert_equal(after.messages - before.messages, 1)  -- to the one other rank of the group
end

function tests.test_what_is_offered_for_two_meshes_works()
  mh.manual_seed(5)
  local x = mh.randn({4, 6}, kF64)
  local function linear() mh.manual_seed(6) return nn.Linear(6, 6):double() end
  local whole = linear()
  local y = whole(x)
  y:square():sum():backward()
  local field = mh.distribute_tensor(x, mesh, {S(0), R()})
  local function on_slice(plan) return mh.parallelize_module(linear(), mesh["tp"], plan) end
  local function check(net, out)
    testing.assert_close(out:full_tensor(), y)
    out:square():sum():backward()
    testing.assert_close(net.weight.grad:full_tensor(), whole.weight.grad)
  end

  local cut = {parameter = {weight = {S(0)}, bias = {S(0)}}}
  local fix = "fix   fully_shard or replicate the module over the dims that mesh(2: tp) lacks, or lift the tensor to "
      .. "the whole mesh"
  testing.assert_error(function() on_slice(cut)(field) end, fix)
  testing.assert_error(function() return field + mh.distribute_tensor(x, mesh["tp"], {S(0)}) end, fix)
  testing.assert_error(function() return mh.distribute_tensor(x, mesh["dp"], {S(0)})
      + mh.distribute_tensor(x, mesh["tp"], {S(0)}) end, fix)
  testing.assert_error(function() on_slice(mh.ColwiseParallel())(field) end, fix)
  testing.assert_error(function() on_slice(mh.ColwiseParallel())(mh.distribute_tensor(x, mesh["dp"], {S(0)})) end,
    "fix   make the plan for mesh(2: dp), of placements (not of styles), one for each dim as here, or give " ..
        "full_tensor()")
  testing.assert_error(function() mh.parallelize_module(linear(), mesh, mh.ColwiseParallel()) end,
    'fix   give a slice of it, as that of "tp"; for tensors on the whole mesh give a plan of placements, one for ' ..
        'each dim')

  local net = mh.parallelize_module(linear(), mesh, {parameter = {weight = {R(), S(0)}, bias = {R(), S(0)}}})
  check(net, net(field))
  net = on_slice(cut)
  check(net, net(field:full_tensor()))
  net = on_slice(cut)
  check(net, mh.linear(field, net.weight:full_tensor(), net.bias:full_tensor()))
  net = on_slice(mh.ColwiseParallel{use_local_output = false})
  check(net, net(field:full_tensor()))
  local grid = mh.init_device_mesh(mh.device(), {4, 1}, {"a", "b"})  -- the same ranks
  local moved = mh.distribute_tensor(x, grid, {S(1), R()})
  testing.assert_error(function() return field + moved end, "fix   redistribute one of them to the other's mesh")
  testing.assert_close((field + moved:redistribute(mesh, {S(0), R()})):full_tensor(), x + x)
end

-- V17: one placement per mesh dimension.
function tests.test_V17_a_plan_for_both_dimensions()
  local function outcome(net, x)
    x = x:detach():requires_grad_()
    local y = net(x)
    y:sin():sum():backward()
    local seen = {y = y:detach(), x = x.grad}
    for name, p in net:named_parameters() do seen[name] = p.grad end
    return seen
  end
  mh.manual_seed(4)
  local x = mh.randn({9, 6}, kF64)
  local expected = outcome(network(), x)
  for _, plan in ipairs {
    {parameter = {["0.weight"] = {S(0), S(1)}, ["2.weight"] = {R(), S(1)}, ["0.bias"] = {S(0), R()}},
    forward = {["0.input"] = {{R(), S(1)}}}},
    {parameter = {["0.weight"] = {R(), S(0)}, ["0.bias"] = {R(), S(0)}, ["2.weight"] = {R(), S(1)}},
      forward = {["0.input"] = {{S(0), R()}}, ["2.output"] = {{S(0), R()}}}},
  } do
    local net = mh.parallelize_module(network(), mesh, plan)
    local actual = outcome(net, mh.distribute_tensor(x, mesh, {R(), R()}))
    mh.finish_grad_sync(net)
    -- Gathered in the same order on every rank, which pairs does not promise.
    for _, name in ipairs {"y", "x", "0.weight", "0.bias", "2.weight", "2.bias"} do
      testing.assert_close(actual[name]:full_tensor(), expected[name])
    end
  end
  testing.assert_error(function() mh.parallelize_module(network(), mesh, {parameter = {["0.weight"] = {S(0)}}}) end,
    "'0.weight' has 1 placements for mesh(2x2: dp, tp), which has 2 dimensions")
end

return tests
