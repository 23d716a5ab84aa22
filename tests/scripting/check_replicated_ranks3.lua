-- SPDX-License-Identifier: Apache-2.0
-- C3: what a script makes differently on every rank is found where it is combined with a ShardTensor, with the
-- script's line.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local mesh = mh.init_device_mesh(mh.device(), {3})
local kNotAlike = "is not the same on all ranks; beside ShardTensors it counts as replicated"

local function field() return mh.distribute_tensor(mh.arange(36.0):reshape{9, 4}, mesh, {mh.Shard(0, {4, 0, 5})}) end

local tests = {}

local function refused(name, fn, ...)
  local words = {...}
  tests["test_" .. name] = function()
    local ok, message = pcall(fn, field())
    testing.assert_equal(ok, false)
    for _, word in ipairs{kNotAlike, "check_replicated_ranks3.lua:", table.unpack(words)} do
      if not tostring(message):find(word, 1, true) then error(("'%s' is not in: %s"):format(word, message)) end
    end
  end
end

refused("weights_of_another_seed", function(x)
  mh.manual_seed(mh.rank())
  local layer = nn.Linear(4, 2)
  mh.manual_seed(1)
  return layer(x)
end, "a plain weight", "Float", "one mh.manual_seed for all", "call  linear(")

refused("a_convolution_of_another_seed", function(x)
  mh.manual_seed(mh.rank())
  local layer = nn.Conv1d(1, 2, 3)
  mh.manual_seed(1)
  return layer(x:unsqueeze(1))
end, "a plain weight", "rank 1 holds others")

refused("a_number_of_the_rank", function(x) return x * (mh.rank() + 0.5) end, "aten::mul",
    "the value is 1.5, on rank 0 0.5")
refused("a_number_of_the_rank_on_the_left", function(x) return mh.rank() - x end, "the value is 2, on rank 0 0")
refused("rows_of_the_rank", function(x) return x:index_select(0, mh.tensor({0, mh.rank()})) end, "argument 'index'",
    "element [1] is 1, on rank 0 0")
refused("labels_of_the_rank", function(x)
  return mh.cross_entropy_loss(x, mh.tensor({0, 1, 2, 3, 0, 1, 2, 3, mh.rank()}))
end, "element [8] is 1, on rank 0 0")
refused("a_mask_of_the_rank", function(x) return x:masked_fill(mh.arange(4):eq(mh.rank()), 0) end, "argument 'mask'",
    "Bool")
refused("a_file_of_the_rank", function(x) return x:clone():copy_(mh.full({9, 4}, mh.rank() * 1.0)) end, "aten::copy_")
refused("a_tensor_of_a_list", function(x) return mh.cat({x, mh.full({1, 4}, mh.rank() * 1.0)}) end,
    "tensor 1 of argument 'tensors'")
refused("what_a_hook_multiplies_with", function(x)
  local y = x:requires_grad_(true) * 2
  y:register_hook(function(g) return g * mh.full({4}, mh.rank() * 1.0) end)
  y:sum():backward()
end, "aten::mul")

function tests.test_random_numbers_of_another_seed()
  local x = field()
  local draws = {
    function() return mh.randn_like(x) end, function() return nn.functional.dropout(x, 0.5, true) end,
    function() return mh.randn({9, 4}, {mesh = mesh, placements = {mh.Replicate()}}) end,
  function() return x:clone():uniform_() end, }
  for i, draw in ipairs(draws) do
    mh.manual_seed(mh.rank())
    testing.assert_error(draw, "ranks draw different random numbers for one ShardTensor")
    mh.manual_seed(i)
    draw()
  end
end

function tests.test_the_switch()
  local x, p = field(), mh.full({4}, mh.rank() * 1.0)
  testing.assert_equal(mh.check_replicated(), true)
  testing.assert_equal(mh.check_replicated(false), true)
  x = x + p
  testing.assert_equal(mh.check_replicated(true), false)
  testing.assert_error(function() return x + p end, kNotAlike)
  testing.assert_error(function() mh.check_replicated(1) end, "check_replicated: expected true or false, got")
  testing.assert_error(function() mh.check_replicated(mh.rank() == 1) end,
      "check_replicated: ranks 0 and 1 want different settings")
end

-- The remedies.
function tests.test_what_is_alike_is_not_refused()
  local x = field()
  mh.manual_seed(3)
  local layer = nn.Linear(4, 2)
  local _ = (layer(x) * 1.5):sum():backward()
  local own = mh.distribute_tensor(mh.full({9, 4}, mh.rank() * 1.0), mesh, {mh.Replicate()})
  testing.assert_equal((x + own):full_tensor(), x:full_tensor())
  local rows = mh.from_local(mh.full({mh.rank() + 1, 4}, mh.rank() * 1.0), mesh, {mh.Shard(0)})
  testing.assert_equal((rows * 2):sum():item(), 8 * 2 + 2 * 12 * 2)
end

return tests
