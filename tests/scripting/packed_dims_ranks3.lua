-- SPDX-License-Identifier: Apache-2.0
-- S26: dims of equal parts (queries, keys and values; gates; halves) whose blocks are runs of all parts. Rows move in
-- one exchange forward and in one backward.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"tp"})
local S, kF64 = mh.Shard, {dtype = "float64"}
local kShape = {2, 3, 24}
local tests = {}

--- Blocks of a dim: balanced, uneven, and one of them empty.
local function cuts_of(extent)
  local uneven, empty = {}, {}
  for rank = 1, ranks do uneven[rank], empty[rank] = rank, 0 end
  uneven[ranks] = extent - ranks * (ranks - 1) // 2
  empty[1], empty[ranks] = extent // 4, extent - extent // 4
  return {S(2), S(2, uneven), S(2, empty)}
end

local function sent_by(fn)
  local before = mh.comm_stats().by_kind.exchange
  local result = fn()
  local after = mh.comm_stats().by_kind.exchange
  return {calls = after.calls - before.calls, bytes = after.bytes - before.bytes}, result
end

local function unpacked(x) return x:reshape({2, 3, 3, 4, 2}):permute({2, 0, 3, 1, 4}) end

local programs = {
  swiglu = function(x)
    local a, b = table.unpack(x:chunk(2, -1))
    return a:silu() * b
  end,
  glu = function(x) return x:glu(-1) end,
  gates = function(x)
    local i, f, g, o = table.unpack(x:chunk(4, 2))
    return o:sigmoid() * (i:sigmoid() * g:tanh() + f:sigmoid()):tanh()
  end,
  projections = function(x)
    local q, k, v = table.unpack(x:split(8, 2))
    return q * k + v:tanh()
  end,
  one_of_three = function(x) return x:chunk(3, 2)[2]:sin() end,
  unbound = function(x)
    local q, k, v = table.unpack(unpacked(x):unbind(0))
    return q:sin() * k + v
  end,
  selected = function(x)
    local parts = x:unflatten(-1, {3, 4, 2})
    return parts:select(2, 0):sin() * parts:select(2, 1) + parts:select(2, 2)
  end,
  rows_of_few_batches = function(x) return (x * x):transpose(1, 2):reshape({48, 3}):sin() end,
}

for name, program in pairs(programs) do
  tests["test_S26_" .. name .. "_equals_one_device"] = function()
    mh.manual_seed(1)
    local x = mh.randn(kShape, kF64)
    for _, cut in ipairs(cuts_of(kShape[3])) do
      testing.same_as_plain(program, {x}, {mesh = mesh, placements = {{cut}}, gradgrad = true})
    end
    testing.same_as_plain(program, {x}, {mesh = mesh, placements = {{S(0)}}, gradgrad = true})
    testing.same_as_plain(program, {x}, {mesh = mesh, placements = {{S(1)}}, gradgrad = true})
  end
end

for _, n in ipairs {2, 3, 4} do
  tests[("test_S26_%d_parts_move_once"):format(n)] = function()
    for _, cut in ipairs(cuts_of(kShape[3])) do
      local x = mh.distribute_tensor(mh.randn(kShape, kF64), mesh, {cut}):requires_grad_(true) * 1
      local sent, parts = sent_by(function() return x:chunk(n, 2) end)
      -- Rows of the packed dim that belong to another rank in their part.
      local width, owners, row, away = kShape[3] // n, {}, 0, 0
      for rank, size in ipairs(parts[1]:shard_sizes(2)) do
        for _ = 1, size do owners[#owners + 1] = rank - 1 end
      end
      for rank, size in ipairs(x:shard_sizes(2)) do
        for r = row, row + size - 1 do
          if rank - 1 == mesh.rank and owners[r % width + 1] ~= mesh.rank then away = away + 1 end
        end
        row = row + size
      end
      testing.assert_equal(sent, {calls = 1, bytes = away * kShape[1] * kShape[2] * 8})
      for i = 2, n do testing.assert_equal(parts[i].placements, parts[1].placements) end
      local gradients = {}
      for i, part in ipairs(parts) do gradients[i] = part:detach() * i end
      local back = sent_by(function() return mh.grad(parts, {x}, {grad_outputs = gradients}) end)
      testing.assert_equal(back.calls, 1)
    end
  end
end

function tests.test_S26_views_of_parts_move_once()
  local x = mh.distribute_tensor(mh.randn(kShape, kF64), mesh, {S(2)}):requires_grad_(true) * 1
  local sent, parts = sent_by(function() return unpacked(x):unbind(0) end)
  testing.assert_equal(sent.calls, 1)
  for i = 2, 3 do testing.assert_equal(parts[i].placements, parts[1].placements) end
  assert(parts[1].placements[1]:is_shard(), "each rank has its share of the parts")
end

function tests.test_S26_halves_of_glu_move_once()
  local x = mh.distribute_tensor(mh.randn(kShape, kF64), mesh, {S(2)}):requires_grad_(true) * 1
  local sent, y = sent_by(function() return x:glu(-1) end)
  testing.assert_equal(sent.calls, 1)
  local back = sent_by(function() return mh.grad(y, {x}, {grad_outputs = {y:detach()}}) end)
  testing.assert_equal(back.calls, 2)  -- the halves, and their gradients
end

function tests.test_S26_parts_are_written_through()
  mh.manual_seed(2)
  local full = mh.randn(kShape, kF64)
  local function write(x)
    local parts = x:chunk(3, 2)
    parts[2]:mul_(2)
    x:add_(1)
    parts[3]:copy_(parts[1])
    x:view({2, 3, 3, 4, 2}):select(2, 0):neg_()
    return x
  end
  for _, cut in ipairs(cuts_of(kShape[3])) do
    testing.assert_equal(write(mh.distribute_tensor(full, mesh, {cut})):full_tensor(), write(full:clone()))
  end
end

function tests.test_S26_parts_stay_in_place_on_request()
  local x = mh.distribute_tensor(mh.randn(kShape, kF64), mesh, {S(2)})
  local before = mh.set_output_cut("keep")
  local sent = sent_by(function() return x:chunk(2, 2) end)
  mh.set_output_cut(before)
  testing.assert_equal(sent.calls, 0)
end

--- Tensors that an operator needs in other places are sent together.
function tests.test_S13_the_tensors_of_a_call_move_in_one_exchange()
  local x, y = mh.randn({12, 2}, kF64), mh.randn({12, 2}, {dtype = "float32"})
  local function cut(whole) return mh.distribute_tensor(whole, mesh, {S(0)}) end
  local parts = {cut(x), cut(x) * 2, cut(x) * 3}
  local sent, joined = sent_by(function() return mh.cat(parts, 0) end)
  testing.assert_equal(sent.calls, 1)
  testing.assert_equal(joined:full_tensor(), mh.cat({x, x * 2, x * 3}, 0))
  local mixed = mh.cat({cut(x), cut(y), cut(x) * 2, cut(y) * 2}, 0)
  testing.assert_equal(mixed:full_tensor(), mh.cat({x, y, x * 2, y * 2}, 0))
end

return tests
