-- SPDX-License-Identifier: Apache-2.0
-- The place of window operators' outputs can be chosen, and blocks made equal again; values stay the same.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function field()
  return mh.arange(0, 24, {dtype = "float64"}):sin():view({1, 1, 12, 2})
end

function tests.test_policies_change_blocks_not_values()
  local w = mh.arange(0, 3, {dtype = "float64"}):view({1, 1, 3, 1})
  local whole = mh.conv2d(field(), w, nil, {stride = {2, 1}, padding = {1, 0}})
  -- A list: the ranks must ask for the same in the same order.
  for _, case in ipairs {{"geometry", "1 5 0"}, {"keep", "1 5 0"}, {"rebalance", "2 2 2"}} do
    local policy, sizes = case[1], case[2]
    testing.assert_equal(mh.set_output_cut(policy), "geometry")
    local x = mh.distribute_tensor(field(), mesh, {mh.Shard(2, {2, 9, 1})}):requires_grad_()
    local y = mh.conv2d(x, w, nil, {stride = {2, 1}, padding = {1, 0}})
    testing.assert_equal(mh.set_output_cut(), policy)
    y:square():sum():backward()
    mh.set_output_cut("geometry")
    testing.assert_equal(table.concat(y:shard_sizes(2), " "), sizes)
    testing.assert_equal(table.concat(x.grad:shard_sizes(2), " "), "2 9 1")
    testing.assert_close(y:full_tensor(), whole)
  end
end

function tests.test_rebalance_evens_blocks()
  local x = mh.distribute_tensor(field(), mesh, {mh.Shard(2, {2, 9, 1})}):requires_grad_()
  local even = mh.rebalance(x)
  testing.assert_equal(table.concat(even:shard_sizes(2), " "), "4 4 4")
  testing.assert_equal(table.concat(x:rebalance(3):shard_sizes(2), " "), "2 9 1")
  testing.assert_close(even:full_tensor(), field())
  even:square():sum():backward()
  testing.assert_close(x.grad:full_tensor(), field() * 2)
end

function tests.test_wrong_policies_are_refused()
  testing.assert_error(function() mh.set_output_cut("balance") end, "did you mean 'rebalance'")
  testing.assert_error(function() mh.set_output_cut(mh.rank() == 0 and "keep" or "geometry") end,
      "ranks 0 and 1 want different policies")
  testing.assert_equal(mh.set_output_cut(), "geometry")
end

return tests
