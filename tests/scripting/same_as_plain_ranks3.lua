-- SPDX-License-Identifier: Apache-2.0
-- Y08: mh.testing.same_as_plain finds what differs, and says the same on all ranks.
local mh = require "moonhalo"
local same, fails = mh.testing.same_as_plain, mh.testing.assert_error

local function smooth(x) return x:numel() == 0 and x or mh.avg_pool1d(x, 3, 1, 1) end

local function wrong_on_blocks(x)
  return x.is_sharded and mh.from_local(smooth(x:to_local()), x.mesh, x.placements) or smooth(x)
end

return {
  test_Y08_agrees = function()
    local x, weight = mh.randn({2, 3, 9, 8}, {dtype = "float64"}), mh.randn({4, 3, 3, 3}, {dtype = "float64"})
    same(function(x, weight) return mh.conv2d(x, weight, nil, 1, 1):tanh(), x:sum() end, {x, weight}, {gradgrad = true})
    same(mh.sin, {x}, {placements = {{mh.Shard(2, {0, 4, 5})}}})
    same(mh.add, {x, x}, {placements = {{mh.Shard(2)}, {}}, gradients = false})
  end,

  test_Y08_finds_a_missing_halo = function()
    local x = mh.randn({1, 2, 12}, {dtype = "float64"})
    local text = fails(function() same(wrong_on_blocks, {x}, {placements = {{mh.Shard(2, {7, 0, 5})}}}) end,
        "on rank 0 of 3")
    mh.testing.assert_equal(text:match("placements  (.*)"), "{{mh.Shard(2, {7, 0, 5})}}")
    fails(function() same(wrong_on_blocks, {x}) end, "blocks differ from plain tensors")
  end,

  test_Y08_names_the_placements_on_which_the_function_fails = function()
    local x = mh.randn{12}
    local function fails_on_blocks(x)
      if x.is_sharded then error("mine") end
      return x
    end
    local text = fails(function() same(fails_on_blocks, {x}, {placements = {{mh.Shard(0, {0, 5, 7})}}}) end, "mine")
    mh.testing.assert_equal(text:match("called the function with (.*)"),
        "blocks of placements {{mh.Shard(0, {0, 5, 7})}}")
    text = fails(function() same(function() error("mine") end, {x}) end, "mine")
    mh.testing.assert_equal(text:match("called the function with (.*)"), "plain tensors, before any blocks")
    fails(function() same(mh.sin, {x}, {mesh = {3}}) end, "same_as_plain: mesh is a table, expected a mesh")
  end,

  test_Y08_refuses_what_it_cannot_compare = function()
    local x = mh.randn{4}
    fails(function() same(3, {x}) end, "same_as_plain: the first argument is 3, expected a function or module")
    fails(function() same(mh.sin, {x, 3}) end, "expected a list of plain tensors")
    fails(function() same(mh.sin, {x}, 3) end, "same_as_plain: the options are 3, expected a table")
    fails(function() same(function() end, {x}) end, "the function returns nothing")
    fails(function() same(function() return 3 end, {x}) end, "result 1 of the function is 3")
    fails(function() same(mh.sin, {x}, {drawz = 3}) end, "draws")
    fails(function() same(mh.sin, {}, {}) end, "no inputs")
  end,
}
