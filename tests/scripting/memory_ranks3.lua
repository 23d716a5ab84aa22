-- SPDX-License-Identifier: Apache-2.0
-- X14: mh.memory counts the blocks of this rank alone, its peak, and what holds them.

local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn
local tests = {}

local kFloat = 4

function tests.test_X14_a_rank_counts_its_own_blocks()
  local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"rows"})
  collectgarbage()
  local before = mh.memory{reset = true}.live
  local rows = (mh.rank() + 1) * 100
  local x = mh.from_local(mh.zeros{rows, 10}, mesh, {mh.Shard(0)})
  collectgarbage()
  testing.assert_equal(mh.memory().live - before, rows * 10 * kFloat)
  local dropped = mh.zeros{rows, 50}
  dropped = nil
  collectgarbage()
  local use = mh.memory{reset = true}
  testing.assert_equal(use.live - before, rows * 10 * kFloat)
  testing.assert_equal(use.peak - before >= rows * 60 * kFloat, true)
  testing.assert_equal(use.peak - before < rows * 70 * kFloat + 10000, true)
  testing.assert_equal(mh.memory().peak - before < rows * 20 * kFloat + 10000, true)
  testing.assert_equal(use.resident > use.live, true)
  testing.assert_equal(use.device, nil)
  testing.assert_equal(x.shape[1], 50 * mh.world_size() * (mh.world_size() + 1))
end

function tests.test_X14_kinds_of_memory()
  local net = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40))
  local parameters = (30 * 40 + 40 + 2 * 40) * kFloat
  local opt = mh.optim.AdamW(net:parameters(), {lr = 0.1})
  local kinds = mh.memory{model = net, optimizer = opt}.by_kind
  testing.assert_equal(kinds.parameters, parameters)
  testing.assert_equal(kinds.gradients, 0)
  testing.assert_equal(kinds.states, 0)
  net(mh.ones{5, 30}):sum():backward()
  opt:step()
  collectgarbage()
  local use = mh.memory{model = net, optimizer = opt}
  kinds = use.by_kind
  testing.assert_equal(kinds.gradients, parameters)
  testing.assert_equal(kinds.states >= 2 * parameters, true)
  testing.assert_equal(kinds.buffers >= 2 * 40 * kFloat, true)
  testing.assert_equal(kinds.parameters + kinds.gradients + kinds.buffers + kinds.states + kinds.rest, use.live)
  testing.assert_equal(mh.memory{model = net}.by_kind.states, nil)
end

-- A rank holds its rows of stored parameters.
function tests.test_X14_stored_parameters_count_their_block()
  local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"data"})
  local net = nn.Linear(30, 39, {bias = false})
  mh.fully_shard(net, {mesh = mesh})
  local rows = mh.distribute_tensor(mh.ones{39}, mesh, {mh.Shard(0)}):to_local().shape[1]
  testing.assert_equal(mh.memory{model = net}.by_kind.parameters, 30 * rows * kFloat)
end

function tests.test_X14_wrong_calls()
  local cases = {
    {function() mh.memory{model = 3} end, "memory: model is 3, expected an nn.Module"},
    {function() mh.memory{optimizer = nn.ReLU()} end, "expected an optimizer"},
    {function() mh.memory{reset = 1} end, "memory: reset is 1, expected true or false"},
    {function() mh.memory{rest = true} end, "rest"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
