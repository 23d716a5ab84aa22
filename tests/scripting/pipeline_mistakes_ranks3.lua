-- SPDX-License-Identifier: Apache-2.0
-- N17: mistakes that one rank of a pipeline finds are errors on all.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local ranks = mh.world_size()
local line = mh.init_device_mesh("cpu", {ranks}, {"pp"})
local kF64 = {dtype = "float64"}
local tests = {}

-- An optimizer without parameters on one rank alone would be an error there, while the others go on.
function tests.test_N17_a_rank_without_parameters_is_an_error_on_all()
  local net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
  local pipe = mh.pipeline(net, {mesh = line, micros = 2})
  testing.assert_error(function() mh.optim.Adam(pipe:parameters(), {lr = 1e-3}) end,
      "pipeline: rank 1 of 3 along 'pp' has no parameters")
  assert(#pipe:infer_step{mh.ones{2, 6}, mh.ones{2, 6}} == 2)
end

-- Only the last stage's rank calls loss and scale_fn, and only that of a stage its module.
function tests.test_N17_a_mistake_on_one_rank_is_one_error_on_all()
  local Odd = nn.Module:extend("Odd")
  function Odd:forward() return 3 end
  local function step(loss, options, odd)
    local stages = {}
    for i = 1, ranks do stages[i] = i == odd and Odd() or nn.Linear(6, 6):double() end
    local pipe = mh.pipeline(stages, {mesh = line, micros = 2})
    return function() pipe:train_step({mh.ones({2, 6}, kF64), mh.ones({2, 6}, kF64)}, loss, options) end, pipe
  end
  local function sum(x) return x:sum() end
  testing.assert_error(step(sum, {scale_fn = function(loss) local _ = loss * 2 end}),
      "scale_fn returns one number\n  have  0 results")
  testing.assert_error(step(sum, {scale_fn = function() return mh.ones{2} end}),
      "scale_fn gives no single number\n  have  Float [2]")
  testing.assert_error(step(function() end), "the loss returns one number\n  have  0 results")
  testing.assert_error(step(function() error("a broken loss") end), "a broken loss")
  for odd = 1, ranks do
    testing.assert_error(step(sum, {}, odd), ("stage %d gives tensors, result 1 is 3"):format(odd - 1))
  end

  local right, pipe = step(sum)
  testing.assert_error(function() pipe:train_step(mh.rank() == 0 and {1, 2}
    or {mh.ones({2, 6}, kF64), mh.ones({2, 6}, kF64)}, sum) end, "train_step: sample 1 is 1")
  testing.assert_error(function() pipe:infer_step(mh.rank() == 0 and {1, 2}
    or {mh.ones({2, 6}, kF64), mh.ones({2, 6}, kF64)}) end, "infer_step: sample 1 is 1")
  local samples = {mh.ones({2, 6}, kF64), mh.ones({2, 6}, kF64)}
  for _, case in ipairs {
    {"train_step: loss is nil, expected a function\n  fix   pipeline:train_step(samples, function"},
    {"train_step: loss is 3, expected a function", 3},
    {"train_step: the options are a table, got 3", sum, 3},
    {"train_step: unknown option 'scale_fun'; did you mean 'scale_fn'?", sum, {scale_fun = sum}},
    {"train_step: scale_fn is 2, expected a function", sum, {scale_fn = 2}},
    {"train_step: is_dummy_batch is {0, 1}, expected a list of true and false", sum, {is_dummy_batch = {0, 1}}},
  } do
    local first = mh.rank() == 0
    testing.assert_error(function() pipe:train_step(samples, first and case[2] or not first and sum or nil,
      first and case[3] or nil) end, case[1])
  end
  testing.assert_error(function() pipe:infer_step(samples, mh.rank() == 1 and 3 or nil) end,
      "infer_step: loss is 3, expected a function")
  right()  -- the ranks are together
end

return tests
