-- SPDX-License-Identifier: Apache-2.0
-- The way in which halos are sent can be chosen, and changes no bit: S16, X06.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local tests = {}

local function step()
  local x = mh.distribute_tensor(mh.arange(0, 2 * 11 * 5, {dtype = "float64"}):sin():view({1, 2, 11, 5}), mesh,
                                 {mh.Shard(2, {4, 1, 6})}):requires_grad_()
  local w = mh.arange(0, 2 * 2 * 3 * 3, {dtype = "float64"}):cos():view({2, 2, 3, 3}):requires_grad_()
  local y = mh.conv2d(x, w, nil, {padding = 1})
  local gx, gw = mh.grad({y:pow(2):sum()}, {x, w})
  return {y:full_tensor(), gx:full_tensor(), gw}
end

function tests.test_S16_same_bits_by_every_setting()
  local expected = step()
  for _, exchange in ipairs {"p2p", "all_to_all"} do
    for _, overlap in ipairs {true, false} do
      local before = mh.set_halo{overlap = overlap, exchange = exchange}
      local set = mh.set_halo()
      testing.assert_equal(set.exchange, exchange)
      testing.assert_equal(set.overlap, overlap)
      mh.comm_stats{reset = true}
      local got = step()
      local stats = mh.comm_stats()
      mh.set_halo(before)
      for i = 1, 3 do testing.assert_equal(got[i]:equal(expected[i]), true) end
      testing.assert_equal(stats.by_kind.all_to_all.calls > 0, exchange == "all_to_all")
      testing.assert_equal(stats.halo.exchanges > 0, true)
      testing.assert_equal(stats.halo.waited <= stats.halo.seconds, true)
    end
  end
end

-- Every reader fetches its halos, so a block may be written in any way between two.
function tests.test_S16_keep_has_no_effect()
  local x = mh.distribute_tensor(mh.ones({1, 1, 12, 5}), mesh, {mh.Shard(2)})
  local w = mh.ones({1, 1, 3, 3})
  local function bytes()
    mh.comm_stats{reset = true}
    local y = mh.conv2d(x, w, nil, {padding = 1})
    local sent = mh.comm_stats().by_kind.exchange.bytes
    testing.assert_close(y:full_tensor(), mh.conv2d(x:full_tensor(), w, nil, {padding = 1}))
    return sent
  end
  local first = bytes()
  local before = mh.set_halo{keep = true}
  testing.assert_equal(before.keep, false)
  testing.assert_equal(mh.set_halo().keep, true)
  for _ = 1, 2 do
    testing.assert_equal(bytes(), first)
    x:to_local():add_(mh.rank())
  end
  mh.set_halo(before)
  testing.assert_error(function() mh.set_halo{keeps = true} end, "did you mean 'keep'?")
end

function tests.test_S16_wrong_settings_are_refused()
  local before = mh.set_halo()
  testing.assert_error(function() mh.set_halo{overlapp = true} end,
      "set_halo: unknown option 'overlapp'; did you mean 'overlap'?")
  testing.assert_error(function() mh.set_halo{exchange = "alltoall"} end, "set_halo: exchange 'alltoall' is neither")
  testing.assert_error(function() mh.set_halo{overlap = 3} end,
      "set_halo: option 'overlap' has a value of the wrong type")
  testing.assert_error(function() mh.set_halo{overlap = mh.rank() == 0} end,
      "set_halo: ranks 0 and 1 want different settings")
  testing.assert_equal(mh.set_halo().overlap, before.overlap)
end

function tests.test_X06_the_trace_shows_the_order()
  local x = mh.distribute_tensor(mh.ones({1, 1, 12, 5}), mesh, {mh.Shard(2)})
  local _, records = mh.op_trace(function() return mh.conv2d(x, mh.ones({1, 1, 3, 3}), nil, {padding = 1}) end)
  local conv = records[#records]
  testing.assert_equal(table.concat(conv.halo, " "), "start interior finish edges")
  testing.assert_equal(conv.halo_waited <= conv.halo_seconds, true)
end

return tests
