-- SPDX-License-Identifier: Apache-2.0
-- N34: the norm of gradients whose parameters are replicated over data and domain and cut over a tensor dim, 2 x 2 x 2
-- ranks.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.training_runs"
local nn = mh.nn

local mesh = mh.init_device_mesh(mh.device(), {2, 2, 2}, {"data", "domain", "tp"})
local kF64 = {dtype = "float64"}
local S, R = mh.Shard, mh.Replicate
local tests = {}

local function plain(x) return x:is_shard_tensor() and x:full_tensor() or x end
local function model()
  mh.manual_seed(5)
  return nn.Sequential(nn.Conv2d(2, 6, 3, {padding = 1}), nn.GELU(), nn.Conv2d(6, 3, 3, {padding = 1}),
      nn.GroupNorm(1, 3)):double()
end

--- The norm and the clipped gradients of a mean over fields [4, 2, 7, 5].
local function outcome(net, x, kind, most, clip)
  net(x):square():mean():backward()
  local found = {norm = plain(clip(net:parameters(), most, kind))}
  for name, p in net:named_parameters() do found[name] = plain(p.grad) end
  return found
end

for _, case in ipairs {{"two", nil, 0.01}, {"one", {norm_type = 1.0}, 0.02},
    {"largest", {norm_type = math.huge}, 0.003}, {"unclipped", nil, 1e6}} do
  tests["test_N34_norm_and_clipping_" .. case[1]] = function()
    mh.manual_seed(6)
    local x = mh.randn({4, 2, 7, 5}, kF64)
    local expected = outcome(model(), x, case[2], case[3], runs.clipped_by_hand)
    local net = mh.parallelize_module(model(), mesh, {parameter = {["0.weight"] = {R(), R(), S(0)},
      ["0.bias"] = {R(), R(), S(0)}, ["2.weight"] = {R(), R(), S(1)}}})

    local actual = outcome(net, mh.distribute_tensor(x, mesh, {S(0, {1, 3}), S(2, {6, 1}), R()}), case[2], case[3],
        mh.clip_grad_norm)

    testing.assert_all_close(actual, expected)
    testing.assert_equal(expected.norm:item() > case[3], case[1] ~= "unclipped")
  end
end

return tests
