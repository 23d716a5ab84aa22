-- SPDX-License-Identifier: Apache-2.0
-- Samples, fields and weights cut at once: a mesh of three dims.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local runs = require "support.training_runs"
local nn = mh.nn

local tests = {}
local new, train = runs.new, runs.train
local kF64 = {dtype = "float64"}
local S = mh.Shard

local Net = nn.Module:extend("Net")
function Net:init()
  self.conv, self.fc1, self.fc2 = nn.Conv2d(2, 6, 3, {padding = 1}), nn.Linear(6, 10), nn.Linear(10, 3)
end
function Net:forward(x)
  local h = mh.gelu(self.conv(x)):permute{0, 2, 3, 1}
  return self.fc2(mh.gelu(self.fc1(h)))
end

function tests.test_S28_D10_S22_N34_batch_domain_and_model()
  local mesh = mh.init_device_mesh(mh.device(), {2, 2, 2}, {"dp", "domain", "tp"})
  mh.manual_seed(2)
  local x = mh.randn({3, 2, 5, 4}, kF64)
  local mine = x:narrow(0, mesh:coordinate("dp") == 0 and 0 or 1, mesh:coordinate("dp") == 0 and 1 or 2)
  mine = mh.distribute_tensor(mine, mesh["domain"], {S(2, {2, 3})})
  local expected = train(new(Net), x, 0.1)
  for _, op in ipairs {"fully_shard", "replicate"} do
    local net = mh.parallelize_module(new(Net), mesh["tp"], {fc1 = mh.ColwiseParallel(), fc2 = mh.RowwiseParallel()})
    mh[op](net.fc1, {mesh = mesh["dp"], min_numel = op == "fully_shard" and 1 or nil})
    mh[op](net, {mesh = mesh["dp"], min_numel = op == "fully_shard" and 1 or nil})
    testing.assert_all_close(train(net, mine, 0.1), expected)
  end
end

return tests
