-- SPDX-License-Identifier: Apache-2.0
-- Marks of arguments on one rank: everything is right without them.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn = mh.nn

local tests = {}
local mesh = mh.init_device_mesh(mh.device(), {1}, {"dp"})

local Net = nn.Module:extend("Net")
function Net:init() self.fc = nn.Linear(6, 5) end
function Net:forward(x, basis) return self.fc(x):matmul(basis:t()):logsumexp{dim = {1}} end

function tests.test_V15_one_rank_needs_no_marks()
  local x, basis = mh.randn{3, 6}, mh.randn{7, 5}
  local function make() mh.manual_seed(4) return Net() end
  local expected = make()(x, basis):detach()
  for _, op in ipairs {"replicate", "fully_shard"} do
    local net = mh[op](make(), {mesh = mesh})
    testing.assert_close(net(x, basis):full_tensor():detach(), expected)
    testing.assert_close(net(mh.local_batch(x:clone()), mh.constant(basis:clone())):full_tensor():detach(), expected)
  end
  testing.assert_close(make()(mh.local_batch(x:clone()), mh.constant(basis:clone())):detach(), expected)
end

return tests
