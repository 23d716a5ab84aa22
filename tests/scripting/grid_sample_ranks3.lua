-- SPDX-License-Identifier: Apache-2.0
-- grid_sample of a field that is cut unevenly, with a stated displacement, equals that of the whole field (float64,
-- 1e-10).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local tests = {}

--- The identity grid of 9 x 5 pixels, each point up to 1.5 rows and 1 column away.
local function fields()
  mh.manual_seed(4)
  local identity = mh.affine_grid_generator(mh.tensor({{{1, 0, 0}, {0, 1, 0}}}, kF64), {1, 1, 9, 5}, false)
  local away = (mh.rand({1, 9, 5, 2}, kF64) * 2 - 1) * mh.tensor({1 * 2 / 5, 1.5 * 2 / 9}, kF64)
  return mh.randn({1, 2, 9, 5}, kF64), identity + away
end

local function run(x, grid)
  x, grid = x:detach():requires_grad_(true), grid:detach():requires_grad_(true)
  local y = mh.grid_sample(x, grid, "bicubic", {padding_mode = "border", max_displacement = {1.5, 1}})
  y:square():sum():backward()
  return {y, x.grad, grid.grad, mh.grid_sample(x, grid, {mode = "nearest", max_displacement = 2})}
end

function tests.test_a_cut_field_equals_the_whole_field()
  local x, grid = fields()
  local whole = run(x, grid)
  local cut = run(mh.distribute_tensor(x, mesh, {mh.Shard(2, {4, 1, 4})}),
      mh.distribute_tensor(grid, mesh, {mh.Shard(1)}))
  for i, expected in ipairs(whole) do testing.assert_close(cut[i]:full_tensor(), expected) end
end

function tests.test_a_bound_that_is_too_small_is_an_error()
  local x, grid = fields()
  local cut = mh.distribute_tensor(x, mesh, {mh.Shard(2)})
  testing.assert_error(function() mh.grid_sample(cut, grid, {max_displacement = 0.5}) end,
      "beyond max_displacement = 0.5")
end

return tests
