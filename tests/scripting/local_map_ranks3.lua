-- SPDX-License-Identifier: Apache-2.0
-- Functions of plain tensors run on every rank's block.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local S, R, P = mh.Shard, mh.Replicate, mh.Partial
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end

-- V13: code that does not mention ranks, with the gradients of one device.
function tests.test_local_map_runs_on_blocks()
  mh.manual_seed(8)
  local x, w = mh.randn({9, 6}, kF64), mh.linspace(-1, 1, 6, kF64)
  local function run(fn, input, weight)
    input, weight = input:detach():requires_grad_(), weight:detach():requires_grad_()
    local y = fn(input, weight)
    plain(y):sin():sum():backward()
    return {y = plain(y:detach()), input = plain(input.grad), weight = plain(weight.grad)}
  end
  local function rowwise(a, b)
    testing.assert_equal(a:is_shard_tensor() or b:is_shard_tensor(), false)
    return (a * b):cumsum(1)
  end
  local expected = run(rowwise, x, w)
  local cut = mh.distribute_tensor(x, mesh, {S(0)})
  local whole = mh.distribute_tensor(w, mesh, {R()})
  local rows = mh.local_map(rowwise, {in_placements = {S(0), R()}, out_placements = {S(0)}})
  testing.assert_all_close(run(rows, cut, whole), expected)
  testing.assert_all_close(run(rows, cut, w), expected)
  local moved = mh.local_map(rowwise, {in_placements = {{S(0)}, {R()}}, out_placements = S(0),
      redistribute_inputs = true})
  testing.assert_all_close(run(moved, mh.distribute_tensor(x, mesh, {S(1)}), whole), expected)
  local everywhere = mh.local_map(rowwise, {in_placements = {R(), R()}, out_placements = {R()},
      redistribute_inputs = true})
  testing.assert_all_close(run(everywhere, cut, whole), expected)

  testing.assert_error(function() rows(mh.distribute_tensor(x, mesh, {S(1)}), whole) end, "argument 1 has placements")
  testing.assert_error(function() mh.local_map(rowwise, {out_placement = {R()}}) end, "unknown option 'out_placement'")
  local sums = mh.local_map(function(a) return a:sum(0) end, {out_placements = {P()}})
  testing.assert_close(sums(cut):full_tensor(), x:sum(0))
end

-- Results that are cut and results that are not leave open what the gradient of a replicated argument is.
function tests.test_mixed_results_ask_for_gradient_placements()
  local x = mh.distribute_tensor(mh.ones({9, 6}, kF64), mesh, {S(0)})
  local w = mh.distribute_tensor(mh.ones({6}, kF64), mesh, {R()}):requires_grad_()
  local function both(a, b) return a * b, b * 2 end
  local options = {in_placements = {S(0), R()}, out_placements = {S(0), R()}}

  testing.assert_error(function() mh.local_map(both, options)(x, w) end,
      "argument 2 is replicated and needs a gradient")
  options.in_grad_placements = {nil, {P()}}
  mh.local_map(both, options)(x, w):sum():backward()
  testing.assert_close(plain(w.grad), mh.full({6}, 9, kF64))
end

-- Only tensors are blocks and ShardTensors; other arguments and results, and results without placements, stay.
function tests.test_other_values_pass()
  local x = mh.ones({9, 6}, kF64)
  local function scaled(a, factor, none, options)
    testing.assert_equal(none == nil and options.offset, 1)
    return a * factor + options.offset, "text", nil, a
  end
  local rows = mh.local_map(scaled, {in_placements = {S(0), false, mh.none}, out_placements = {S(0), mh.none, {S(0)}},
      mesh = mesh})
  local y, text, none, block = rows(x, 2, nil, {offset = 1})
  testing.assert_close(y:full_tensor(), x * 2 + 1)
  testing.assert_equal(text, "text")
  testing.assert_equal(none == nil and block.shape[1] == 3, true)

  local alone = mh.local_map(scaled, {out_placements = S(0)})
  testing.assert_equal(select("#", alone(x, 2, nil, {offset = 1})), 4)
  testing.assert_equal(rawequal(select(4, alone(x, 2, nil, {offset = 1})), x), true)
end

function tests.test_mistakes_in_the_call()
  local x = mh.distribute_tensor(mh.ones({9, 6}, kF64), mesh, {S(0)})
  local function mapped(fn, options) return function() mh.local_map(fn, options)(x) end end
  testing.assert_error(mapped(print, {}), "local_map: out_placements is missing")
  testing.assert_error(mapped(3, {out_placements = S(0)}), "expected a function, got")
  testing.assert_error(mapped(print, {out_placements = 3}), "local_map: out_placements is a list, got")
  testing.assert_error(mapped(print, {out_placements = {rows = S(0)}}), "local_map: out_placements has the key")
  testing.assert_error(mapped(print, {in_placements = {{S(0), R()}}, out_placements = S(0)}),
      "argument 1 has 2 placements for")
  testing.assert_error(mapped(function() return 3 end, {out_placements = S(0)}),
      "out_placements is for tensors, result 1 is")
  testing.assert_error(mapped(function() end, {out_placements = S(0)}), "out_placements is for 1 results, there are 0")
  testing.assert_error(mapped(function() error("the valve is stuck") end, {out_placements = S(0)}),
      "the valve is stuck")
end

return tests
