-- SPDX-License-Identifier: Apache-2.0
-- Edges kept for a tensor's next readers change no bit and are sent once: S16, X06.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function field()
  return mh.distribute_tensor(mh.arange(0, 2 * 11 * 5, {dtype = "float64"}):sin():view({1, 2, 11, 5}), mesh,
                              {mh.Shard(2, {4, 1, 6})})
end

local function weight(size) return mh.arange(0, 4 * size * size, {dtype = "float64"}):cos():view({2, 2, size, size}) end

local function with_keep(keep, fn)
  local before = mh.set_halo{keep = keep}
  local results = table.pack(pcall(fn))
  mh.set_halo(before)
  assert(results[1], results[2])
  return table.unpack(results, 2, results.n)
end

local function step()
  mh.comm_stats{reset = true}
  local x, w = field():requires_grad_(), weight(3):requires_grad_()
  local y = mh.conv2d(x, w, nil, {padding = 1}) + mh.conv2d(x, weight(5), nil, {padding = 2})
      + mh.conv2d(x, w * 2, nil, {padding = 1})
  local gx, gw = mh.grad({y:pow(2):sum()}, {x, w})
  local bytes = mh.comm_stats().by_kind.exchange.bytes
  return {y:full_tensor(), gx:full_tensor(), gw}, bytes
end

function tests.test_X06_same_bits_and_fewer_bytes()
  local expected, all = with_keep(false, step)
  local got, fewer = with_keep(true, step)
  for i = 1, 3 do testing.assert_equal(got[i]:equal(expected[i]), true) end
  testing.assert_equal(fewer < all, true)
  testing.assert_equal(mh.set_halo().keep, false)
end

function tests.test_X06_the_trace_tells_what_was_kept()
  with_keep(true, function()
    local x = field()
    local _, records = mh.op_trace(function()
      local y = mh.conv2d(x, weight(3), nil, {padding = 1})
      collectgarbage()
      return y + mh.conv2d(x, weight(3), nil, {padding = 1})
    end)
    local halos = {}
    for _, record in ipairs(records) do
      if #record.halo > 0 then halos[#halos + 1] = table.concat(record.halo, " ") end
    end
    testing.assert_equal(table.concat(halos, ", "), "start interior finish edges, kept")
  end)
end

function tests.test_X06_a_block_written_alone_is_refused()
  with_keep(true, function()
    local x, w = field(), weight(3)
    mh.conv2d(x, w, nil, {padding = 1})
    if mh.rank() == 1 then
      x:to_local():add_(1)
      testing.assert_error(function() mh.conv2d(x, w, nil, {padding = 1}) end, "written behind the ShardTensor's back")
    else
      mh.conv2d(x, w, nil, {padding = 1})
    end
    x:add_(1)
    testing.assert_close(mh.conv2d(x, w, nil, {padding = 1}):full_tensor(),
        mh.conv2d(x:full_tensor(), w, nil, {padding = 1}))
  end)
end

function tests.test_S16_ranks_that_differ_are_told()
  testing.assert_error(function() mh.set_halo{keep = mh.rank() == 0} end,
      "set_halo: ranks 0 and 1 want different settings")
  testing.assert_error(function() mh.set_halo{keeps = true} end, "did you mean 'keep'?")
  testing.assert_equal(mh.set_halo().keep, false)
end

return tests
