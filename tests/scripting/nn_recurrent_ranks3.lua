-- SPDX-License-Identifier: Apache-2.0
-- Y16: recurrent layers have PyTorch's results and gradients (golden/nn_modules.py), also with the batch cut; a time
-- dim that is cut is refused.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local golden = require "golden.nn_modules"
local modules = require "support.golden_modules"

local kF64 = {dtype = "float64"}
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"dp"})
local nn = mh.nn
local tests = {}

local check, filled, sines = modules.check, modules.filled, modules.sines

for i, case in ipairs(golden) do
  local name = tostring(case[1](nn):class_name())
  tests[("test_Y16_%s_%d_equals_pytorch"):format(name, i)] = function()
    check(case)
    local rank = #case[2][1]
    if rank == 3 then
      local batch = case[1](nn).batch_first and 0 or 1
      check(case, mesh, mh.Shard(batch))
      check(case, mesh, mh.Shard(batch, {2, 0, 1}))
    elseif rank == 2 and name:find("Cell") then
      check(case, mesh, mh.Shard(0, {0, 3, 0}))
    end
  end
end

function tests.test_Y16_a_time_dim_that_is_cut_is_refused()
  local x = mh.distribute_tensor(mh.ones({6, 3, 2}), mesh, {mh.Shard(0)})
  local message = testing.assert_error(function() nn.LSTM(2, 3)(x) end, "LSTM: the time dim 0 of the input is cut")
  assert(message:find("fix   cut another dim first, x:redistribute{mh.Shard(1)}", 1, true), message)
  testing.assert_error(function() nn.GRU(2, 3, {batch_first = true})(x:transpose(0, 1)) end,
      "GRU: the time dim 1 of the input is cut")
  testing.assert_error(function() nn.RNN(2, 3)(x:select(1, 0)) end, "RNN: the time dim 0 of the input is cut")
  -- LibTorch's fused LSTM of float32 would gather the batch.
  mh.manual_seed(2)
  local net, batch = nn.LSTM(2, 3, 2, {bidirectional = true}), mh.randn({6, 3, 2})
  local before = mh.comm_stats().bytes
  local cut = mh.distribute_tensor(batch, mesh, {mh.Shard(1)})
  local bytes = mh.comm_stats().bytes - before
  local y = net(cut)
  testing.assert_equal(mh.comm_stats().bytes - before, bytes)
  testing.assert_close(y:full_tensor(), (net(batch)))
end

function tests.test_Y16_states_go_on()
  local x = sines({6, 3, 2}, 1)
  for _, kind in ipairs {"LSTM", "GRU", "RNN"} do
    local net = filled(function(n) return n[kind](2, 4, 2) end)
    local whole, last = net(x)
    local first, state = net(x:narrow(0, 0, 2))
    local second, ends = net(x:narrow(0, 2, 4), state)
    testing.assert_close(mh.cat({first, second}, 0), whole)
    testing.assert_close(kind == "LSTM" and ends[2] or ends, kind == "LSTM" and last[2] or last)
  end
  mh.manual_seed(1)
  local drop = nn.GRU(2, 4, 2, {dropout = 0.5}):double()
  assert(not mh.equal((drop(x)), (drop(x))), "dropout between layers while training")
  testing.assert_equal((drop:eval()(x)), (drop(x)))
end

function tests.test_Y16_mistakes()
  local x = mh.ones({4, 3, 2})
  local cases = {
    {function() nn.LSTM(2) end, "LSTM: 'hidden_size' is missing"},
    {function() nn.LSTM(2, 0) end, "LSTM: hidden_size is 0"},
    {function() nn.LSTM(3, 4)(x) end, "LSTM: the input has 2 features, expected 3"},
    {function() nn.LSTM(2, 4)(x, mh.ones({1, 3, 4})) end, "LSTM: the state is Tensor"},
    {function() nn.GRU(2, 4)(x, mh.ones({2, 3, 4})) end, "GRU: a state has shape [2, 3, 4], expected [1, 3, 4]"},
    {function() nn.RNN(2, 4, {nonlinearity = "gelu"}) end, "RNN: unknown nonlinearity 'gelu'"},
    {function() nn.GRU(2, 4, {dropout = 2}) end, "GRU: dropout is 2"},
    {function() nn.LSTMCell(2, 4)(x) end, "LSTMCell: the input is"},
    {function() nn.GRU(2, 4)(3) end, "GRU: input is 3, expected a tensor"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
