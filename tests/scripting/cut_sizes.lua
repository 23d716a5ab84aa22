-- SPDX-License-Identifier: Apache-2.0
-- Sizes of blocks by the work that rows cost and by the speed of ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local refused = require "support.refused"

local tests = {}

function tests.test_X13_blocks_by_work_and_speed()
  testing.assert_equal(mh.cut_sizes({1, 1, 1, 1, 1, 1}, 3), {2, 2, 2})
  testing.assert_equal(mh.cut_sizes({5, 1, 1, 1, 1, 1}, 2), {1, 5})
  testing.assert_equal(mh.cut_sizes(mh.tensor{0, 0, 3, 4, 3, 0}, 3), {3, 1, 2})
  testing.assert_equal(mh.cut_sizes({1, 1, 1, 1, 1, 1}, 2, {2, 1}), {4, 2})
  testing.assert_equal(mh.cut_sizes({1, 1, 1}, 2, {1, 0}), {3, 0})
  testing.assert_equal(mh.cut_sizes({0, 0, 0, 0}, 2), {3, 1})
  testing.assert_equal(mh.cut_sizes({1}, 3), {1, 0, 0})
  -- No contiguous cut is better: all are tried.
  for seed = 1, 30 do
    local weights, speeds, total = {}, {}, 0
    for i = 1, 9 do weights[i] = (seed * 37 + i * i * 11) % 17 end
    for i = 1, 3 do speeds[i] = 1 + (seed * i) % 4 end
    local function slowest(sizes)
      local begin, time = 0, 0
      for i, size in ipairs(sizes) do
        local sum = 0
        for k = begin + 1, begin + size do sum = sum + weights[k] end
        begin, time = begin + size, math.max(time, sum / speeds[i])
      end
      total = begin
      return time
    end
    local best = math.huge
    for a = 0, 9 do
      for b = a, 9 do best = math.min(best, slowest{a, b - a, 9 - b}) end
    end
    testing.assert_close(mh.tensor(slowest(mh.cut_sizes(weights, 3, speeds)), {dtype = "float64"}),
        mh.tensor(best, {dtype = "float64"}))
    testing.assert_equal(total, 9)
  end
  refused(function() mh.cut_sizes({1, -1}, 2) end, "cut_sizes: weights has -1 at 1")
  refused(function() mh.cut_sizes({1, 1}, 2, {1}) end, "cut_sizes: 1 speeds for 2 parts")
  refused(function() mh.cut_sizes({1, 1}, 2, {0, 0}) end, "cut_sizes: all speeds are 0")
  refused(function() mh.cut_sizes({1, 1}, 0) end, "cut_sizes: parts is 0")
  refused(function() mh.cut_sizes({}, 1) end, "cut_sizes: weights is {}")
end

return tests
