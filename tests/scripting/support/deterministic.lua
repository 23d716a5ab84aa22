-- SPDX-License-Identifier: Apache-2.0
-- Y16: runs of one script have the same bits, and mh.use_deterministic refuses operators that LibTorch says differ.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local nn = mh.nn
local tests = {}

--- Bits of the parameters after three steps on blocks.
local function trained()
  mh.manual_seed(3)
  local net = nn.Sequential(nn.Conv2d(2, 4, 3, {padding = 1}), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2),
      nn.Conv2d(4, 2, 3, {padding = 1}))
  local opt = mh.optim.NAdam(net:parameters(), {lr = 0.01})
  local x = mh.distribute_tensor(mh.randn({2, 2, 9, 6}), mesh, {mh.Shard(2, {4, 0, 5})})
  for _ = 1, 3 do
    opt:zero_grad()
    net(x):square():mean():backward()
    opt:step()
  end
  local list = {}
  for _, parameter in net:named_parameters() do list[#list + 1] = parameter:detach():full_tensor():flatten() end
  return mh.cat(list, 0)
end

function tests.test_Y16_twenty_runs_have_the_same_bits()
  mh.use_deterministic(true)
  local first = trained()
  for _ = 2, 20 do assert(mh.equal(trained(), first), "bits differ from those of the first run") end
  -- Threads share the setting, so another rank may have set it before.
  mh.use_deterministic(false)
end

function tests.test_Y16_the_setting_is_given_back()
  mh.barrier()
  testing.assert_equal(mh.use_deterministic(false), false)
  testing.assert_error(function() mh.use_deterministic(1) end, "use_deterministic")
  mh.barrier()
  mh.use_deterministic_algorithms(true, {warn_only = true})
  mh.barrier()
  testing.assert_equal({mh.are_deterministic_algorithms_enabled(), mh.is_deterministic_algorithms_warn_only_enabled()},
      {true, true})
  mh.barrier()
  mh.use_deterministic_algorithms(false)
  mh.barrier()
  testing.assert_equal({mh.are_deterministic_algorithms_enabled(), mh.is_deterministic_algorithms_warn_only_enabled()},
      {false, false})
end

return tests
