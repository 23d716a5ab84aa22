-- SPDX-License-Identifier: Apache-2.0
-- D10, V15, N37, N39: one dim of a parameter cut by two mesh dims, the first of them outermost: blocks of "dp", each
-- cut by "tp". Used on 2 x 2 ranks and on 2 x 3.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.training_runs"
local layouts = require "support.checkpoint_layouts"
local nn, S, R, Stored = mh.nn, mh.Shard, mh.Replicate, mh.Stored

local inner = mh.world_size() // 2
local mesh = mh.init_device_mesh(mh.device(), {2, inner}, {"dp", "tp"})
local tests = {}

local function net_of()
  return runs.new(function() return nn.Sequential(nn.Linear(12, 13), nn.Tanh(), nn.Linear(13, 7)) end)
end
local function samples() return mh.arange(60, {dtype = "float64"}):mul(0.1):sin():reshape{5, 12} end

--- 13 rows over all ranks: none for some, one for others. The blocks of "dp" have what those of "tp" in them add up to.
local kRows = inner == 2 and {0, 9, 1, 3} or {4, 0, 5, 3, 0, 1}
local kOuter = {9, 4}
local kAllInFirst = inner == 2 and {6, 7, 0, 0} or {6, 7, 0, 0, 0, 0}

local kCuts = {
  stored_outside = {Stored(0), S(0)}, stored_inside = {S(0), Stored(0)}, both = {Stored(0), Stored(0)},
  none_stored = {S(0), S(0)},
  uneven_outside = {Stored(0, kOuter), S(0, kRows)}, uneven_inside = {S(0, kOuter), Stored(0, kRows)},
  empty = {Stored(0, {13, 0}), S(0, kAllInFirst)},
}

--- The first layer's weight and bias are cut twice along dim 0.
local function divided(cuts)
  return mh.parallelize_module(net_of(), mesh, {parameter = {["0.weight"] = cuts, ["0.bias"] = cuts,
      ["2.weight"] = {Stored(1), R()}}})
end
local function texts(placements)
  local list = {}
  for i, placement in ipairs(placements) do list[i] = tostring(placement) end
  return list
end

for name, cuts in pairs(kCuts) do
  tests["test_D10_V15_trains_as_the_whole_model_" .. name] = function()
    local expected = runs.train(net_of(), samples())
    for _, batch in ipairs {{R(), R()}, {S(0, {5, 0}), R()}, {S(0), S(1)}} do
      local net = divided(cuts)
      local before = texts(net[0].weight.placements)
      testing.assert_equal(texts(mh.distribute_tensor(mh.zeros{13, 2}, mesh, cuts).placements), before)
      local x = mh.distribute_tensor(samples(), mesh, batch)

      testing.assert_all_close(runs.train(net, x, nil, function()
        -- A gradient has the layout of its parameter.
        mh.finish_grad_sync(net)
        testing.assert_equal(texts(net[0].weight.grad.placements), before)
      end), expected)

      testing.assert_equal(texts(net[0].weight.placements), before)
    end
  end
end

function tests.test_D10_blocks_of_the_first_mesh_dim_are_cut_by_the_second()
  local x, first = mh.arange(26.0):reshape{13, 2}, 0
  for place = 1, mesh:coordinate("dp") * inner + mesh:coordinate("tp") do first = first + kRows[place] end
  local rows = kRows[mesh:coordinate("dp") * inner + mesh:coordinate("tp") + 1]
  for _, name in ipairs {"uneven_outside", "uneven_inside"} do
    testing.assert_equal(mh.distribute_tensor(x, mesh, kCuts[name]):to_local(), x:narrow(0, first, rows))
  end
end

function tests.test_N34_norms_of_parameters_that_are_cut_twice()
  local whole = net_of()
  whole(samples()):square():mean():backward()
  local expected = runs.clipped_by_hand(whole:parameters(), 1e9):item()
  for _, cuts in pairs(kCuts) do
    local net = divided(cuts)
    net(mh.distribute_tensor(samples(), mesh, {S(0), R()})):square():mean():backward()
    testing.assert_close(mh.clip_grad_norm(net:parameters(), 1e9):item(), expected)
  end
end

function tests.test_N37_N39_checkpoints_of_both_layouts()
  local x = mh.distribute_tensor(samples(), mesh, {S(0), R()})
  for name, cuts in pairs(kCuts) do
    for _, layout in ipairs {"whole", "per_rank"} do
      local path, net = layouts.folder("nested_" .. name .. "_" .. layout), divided(cuts)
      local opt = mh.optim.AdamW(net:parameters(), {lr = 0.05})
      runs.go_on(net, opt, x, 2)
      mh.checkpoint.save(path, {model = net, optimizer = opt}, {layout = layout})
      local expected = runs.go_on(net, opt, x, 2)

      for _, other in ipairs {cuts, layout == "whole" and {R(), Stored(0)} or cuts} do
        local again = divided(other)
        local second = mh.optim.AdamW(again:parameters(), {lr = 0.05})
        mh.no_grad(function() again[0].weight:zero_() end)
        mh.checkpoint.load(path, {model = again, optimizer = second})
        testing.assert_close(runs.go_on(again, second, x, 2), expected)
      end
      mh._files.on_first_rank(function() mh._checkpoint_files.discard("test", path) end)
    end
  end
end

function tests.test_V03_plans_in_json_hold_both_cuts()
  for name, cuts in pairs(kCuts) do
    local net, file = divided(cuts), layouts.folder("nested_plan_" .. name) .. ".json"
    local plan = {parameter = {["0.weight"] = net[0].weight.placements, ["0.bias"] = net[0].bias.placements}}
    mh._files.on_first_rank(function() mh._files.write("test", file, tostring(mh.plan.new(plan))) end)
    local again = mh.parallelize_module(net_of(), mesh, mh.plan.load(file))
    for _, one in ipairs {"weight", "bias"} do
      testing.assert_equal(texts(again[0][one].placements), texts(net[0][one].placements))
      testing.assert_equal(again[0][one]:to_local(), net[0][one]:to_local())
    end
    mh.barrier()
    mh._files.on_first_rank(function() assert(os.remove(file)) end)
  end
end

function tests.test_V15_units_gather_and_leave_what_two_mesh_dims_cut_to_operators()
  local expected = runs.train(net_of(), samples())
  for _, cuts in ipairs {{R(), S(0)}, {Stored(0), S(0)}} do
    local net = mh.parallelize_module(net_of(), mesh["tp"], {parameter = {["0.weight"] = {S(0)}, ["0.bias"] = {S(0)}}})
    if cuts[1]:is_stored() then net = divided(cuts) end
    mh.fully_shard(net, {mesh = mesh["dp"], min_numel = 1})
    -- A matrix is kept in blocks of its other dim, a bias that has no other is copied, and cuts by hand stay.
    testing.assert_equal({tostring(net[0].weight.placements[1]):match("%w+%(%d"),
      tostring(net[0].bias.placements[1]):match("%w+")},
      cuts[1]:is_stored() and {"Stored(0", "Stored"} or {"Stored(1", "Replicate"})
    local mine = samples():narrow(0, mesh:coordinate("dp") * 2, mesh:coordinate("dp") == 0 and 2 or 3)
    testing.assert_all_close(runs.train(net, mine), expected)
  end
end

return tests
