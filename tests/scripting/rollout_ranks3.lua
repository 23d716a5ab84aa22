-- SPDX-License-Identifier: Apache-2.0
-- Y17: mh.rollout, a network that is applied to its own results, on plain fields and on blocks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local tests = {}

local function net()
  mh.manual_seed(2)
  return mh.nn.Conv2d(2, 2, 3, {padding = 1, padding_mode = "circular"}):double()
end

local function field()
  mh.manual_seed(3)
  return mh.randn({2, 2, 9, 6}, kF64)
end

--- Results and gradients of a loop written out, of which the first `free` steps keep no graph.
local function by_hand(x, steps, free)
  local one, states, y = net(), {}, x
  for step = 1, steps do
    if step <= free then
      y = one(y):detach()
    else
      y = one(y)
    end
    states[step] = y
  end
  local all = mh.stack(states, 1)
  all:square():sum():backward()
  return all:detach(), one.weight.grad
end

local function rolled(x, steps, options)
  local one = net()
  local all = mh.rollout(one, x, steps, options)
  all:square():sum():backward()
  return all:detach(), one.weight.grad
end

local function full(x) return x:full_tensor() end

function tests.test_Y17_rollout_equals_the_loop_on_blocks()
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  local x = field()
  for _, options in ipairs {{}, {recompute = true}, {gradients = 2}, {gradients = 1, recompute = true}} do
    local states, gradient = by_hand(x, 4, options.gradients and 4 - options.gradients or 0)
    for _, place in ipairs {false, mh.Shard(2, {4, 0, 5}), mh.Shard(3), mh.Shard(0)} do
      local given = place and mh.distribute_tensor(x, mesh, {place}) or x
      local have, have_gradient = rolled(given, 4, options)
      testing.assert_close(full(have), states)
      testing.assert_close(full(have_gradient), gradient)
    end
  end
end

function tests.test_Y17_recomputed_under_autocast()
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  local x = mh.distribute_tensor(field():float(), mesh, {mh.Shard(2, {4, 0, 5})})
  local function gradient(options)
    local one = net():float()
    local all = mh.autocast("bfloat16", mh.rollout, one, x, 3, options)
    all:float():square():sum():backward()
    return one.weight.grad:full_tensor()
  end
  testing.assert_close(gradient{recompute = true}, gradient{}, {rtol = 1e-5, atol = 1e-5})
end

function tests.test_Y17_steps_without_gradients_keep_no_graph()
  local x, one = field(), net()
  local all = mh.rollout(one, x, 3, {gradients = 0})
  assert(not all.requires_grad, "no step was to be differentiated")
  local graphs = {}
  mh.rollout(one, x, 3, {gradients = 2, each = function(y, step) graphs[step] = y.requires_grad end})
  testing.assert_equal(graphs, {false, true, true})
end

function tests.test_Y17_inputs_of_several_states_and_forcing()
  local seen = {}
  -- x_n+1 = x_n + x_n-1: two states in a channel each.
  local all = mh.rollout(function(x) return x:sum(1, true) end, mh.tensor({{1.0, 1.0}}, kF64), 5, {
    next = function(y, input, step)
      seen[#seen + 1] = step
      return mh.cat({input:narrow(1, 1, 1), y}, 1)
    end, dim = 0,
  })
  testing.assert_equal(all:flatten():tolist(), {2, 3, 5, 8, 13})
  testing.assert_equal(seen, {1, 2, 3, 4})
end

function tests.test_Y17_each_decides_what_is_kept()
  local double = function(x) return x * 2 end
  local x = mh.tensor({{1.0}}, kF64)
  local kept = mh.rollout(double, x, 4, {each = function(y, step) return step % 2 == 0 and y + 0.5 end})
  testing.assert_equal(kept:tolist(), {{{4.5}, {16.5}}})
  testing.assert_equal(mh.rollout(double, x, 2, {each = function() return false end}), nil)
end

function tests.test_Y17_mistakes()
  local x = mh.ones({1, 2})
  local cases = {
    {function() mh.rollout(3, x, 2) end, "rollout: net is 3, expected a module or a function"},
    {function() mh.rollout(mh.relu, x, 0) end, "rollout: steps is 0"},
    {function() mh.rollout(mh.relu, x, 2, {gradients = 3}) end, "rollout: gradients is 3, more than the 2 steps"},
    {function() mh.rollout(function(y) return y:sum(1) end, x, 2) end, "fix   say how the next input is made"},
    {function() mh.rollout(function() return 1 end, x, 2) end, "rollout: net gives 1, expected a tensor"},
    {function() mh.rollout(mh.relu, x, 2, {dim = 4}) end, "rollout: dim is 4, expected 0 to 2"},
    {function() mh.rollout(mh.relu, x, 2, {nxt = 1}) end, "did you mean 'net' or 'next'?"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
