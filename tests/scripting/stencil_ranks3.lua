-- SPDX-License-Identifier: Apache-2.0
-- Finite differences of a field that is cut unevenly equal those of the whole field; gradients too (float64, 1e-10).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function run(x)
  x = x:detach():requires_grad_(true)
  local along = mh.stencil_gradient(x, {dims = {1, 2}, spacing = {0.5, 0.2}, boundary = "circular"})
  local results = {
    mh.stencil(x, {dim = 1, derivative = 1, order = 4, spacing = 0.1, boundary = "reflect"}),
    mh.stencil(x, {dim = 1, derivative = 2}),
    x:stencil{dim = -1, offsets = {-1, 0, 1}, weights = {0.25, 0.5, 0.25}, boundary = "replicate"},
    mh.laplacian(x, {dims = {1, 2}, spacing = 0.1, order = 4}),
    mh.divergence({x, x * 2}, {dims = {1, 2}}),
    along[1], along[2],
  }
  local loss = 0
  for _, result in ipairs(results) do loss = loss + result:square():sum() end
  loss:backward()
  results[#results + 1] = x.grad
  return results
end

function tests.test_a_cut_field_equals_the_whole_field()
  mh.manual_seed(3)
  local x = mh.randn({2, 9, 7}, {dtype = "float64"})
  local whole, cut = run(x), run(mh.distribute_tensor(x, mesh, {mh.Shard(1, {3, 1, 5})}))
  for i, expected in ipairs(whole) do testing.assert_close(cut[i]:full_tensor(), expected) end
end

function tests.test_a_parabola_has_a_constant_second_derivative()
  local x = mh.arange(0, 8, {dtype = "float64"}) * 0.5
  testing.assert_close(mh.stencil(x * x, {dim = 0, derivative = 2, spacing = 0.5}),
      mh.ones({8}, {dtype = "float64"}) * 2)
end

function tests.test_refusals_name_the_nearest_boundary()
  testing.assert_error(function() mh.stencil(mh.zeros({4}), {dim = 0, boundary = "reflct"}) end,
      "did you mean 'reflect'")
end

return tests
