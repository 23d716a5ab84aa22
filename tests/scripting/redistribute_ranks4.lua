-- SPDX-License-Identifier: Apache-2.0
-- Redistribution: placements, another mesh of the same ranks, and messages that are sent while the script goes on.
local mh = require "moonhalo"
local t = require "moonhalo.testing"

local S, R, P = mh.Shard, mh.Replicate, mh.Partial
local line = mh.init_device_mesh(mh.device(), {4}, {"domain"})
local grid = mh.init_device_mesh(mh.device(), {2, 2}, {"data", "domain"})
local tests = {}

local function field()
  mh.manual_seed(3)
  return mh.randn({7, 5}, {dtype = "float64"})
end

function tests.test_D04_every_pair_of_placements()
  local full = field()
  local all = {{R(), R()}, {P(), R()}, {S(0, {6, 1}), S(1)}, {S(1, {0, 5}), P("max")}, {S(0), S(0)},
      {P("product"), S(0)}}
  for _, from in ipairs(all) do
    local x = mh.distribute_tensor(full, grid, {R(), R()}):redistribute(from)
    for _, to in ipairs(all) do t.assert_close(x:redistribute(to):full_tensor(), full) end
  end
end

function tests.test_D04_another_mesh_of_the_same_ranks()
  local full = field()
  local x = mh.distribute_tensor(full, line, {S(0, {1, 0, 4, 2})}):requires_grad_()

  local y = x:redistribute(grid, {S(1), S(0, {3, 4})})
  local back = (y * y):redistribute(line, S(1))
  back:sum():backward()

  t.assert_equal(tostring(y.mesh), tostring(grid))
  t.assert_equal(y:shard_sizes(0), {3, 4})
  t.assert_close(back:full_tensor(), full * full)
  t.assert_equal(x.grad:shard_sizes(0), {1, 0, 4, 2})
  t.assert_close(x.grad:full_tensor(), full * 2)
end

function tests.test_meshes_of_other_ranks_are_refused()
  local x = mh.distribute_tensor(field(), line, {S(0)})
  t.assert_error(function() x:redistribute(grid["domain"], {S(0)}) end,
      "does not hold the same ranks as the tensor's mesh")
  t.assert_error(function() x:redistribute(grid, {S(0)}) end, "redistribute: 1 placements for mesh(2x2: data, domain)")
  t.assert_error(function() x:redistribute({S(1)}, {async = true}) end, "redistribute: unknown option 'async'")
end

function tests.test_V24_async_flag_gives_the_same()
  local full = field()
  local x = mh.distribute_tensor(full, line, {S(0)}):requires_grad_()

  local pending = x:redistribute({S(1)}, {async_op = true})
  local elsewhere = x:redistribute(grid, {R(), S(0)}, {async_op = true})
  local total = x:sum():full_tensor()
  local y = pending:wait();
  (y * y):sum():backward()

  t.assert_equal(y:full_tensor():equal(x:redistribute({S(1)}):full_tensor()), true)
  t.assert_equal(elsewhere:wait():full_tensor():equal(full), true)
  t.assert_close(total, full:sum())
  t.assert_close(x.grad:full_tensor(), full * 2)
end

return tests
