-- SPDX-License-Identifier: Apache-2.0
-- Neighbours in a cloud that is cut unevenly, one block empty, equal those of the whole cloud; gradients too (float64,
-- 1e-10).
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kF64 = {dtype = "float64"}
local tests = {}

local function run(query, points)
  query, points = query:detach():requires_grad_(true), points:detach():requires_grad_(true)
  local distances, indices = mh.knn(query, points, {k = 6})
  local near, which, counts = query:radius_search(points, 0.4, 3)
  local offsets = mh.neighbor_offsets(query, points, indices)
  ;((distances * 2 + offsets:square():sum{dim = {-1}}):sum() + near:sum()):backward()
  return {distances, indices, near, which, counts, offsets, query.grad, points.grad}
end

function tests.test_a_cut_cloud_equals_the_whole_cloud()
  mh.manual_seed(3)
  local query, points = mh.rand({10, 2}, kF64), mh.rand({13, 2}, kF64)
  local whole = run(query, points)
  local cut = run(mh.distribute_tensor(query, mesh, {mh.Shard(0, {7, 1, 2})}),
    mh.distribute_tensor(points, mesh, {mh.Shard(0, {4, 0, 9})}))
  for i, expected in ipairs(whole) do testing.assert_close(cut[i]:full_tensor(), expected) end
end

function tests.test_refusals_name_the_numbers()
  local points = mh.zeros({4, 2})
  testing.assert_error(function() mh.knn(points, points, 5) end, "knn: k = 5 is not in [1, 4]")
end

return tests
