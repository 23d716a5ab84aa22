-- SPDX-License-Identifier: Apache-2.0
-- C4: complex parameters on blocks, uneven and empty ones, and replicated; what was saved is loaded in another cut.
local mh = require "moonhalo"
local runs = require "support.complex_runs"

local mesh = mh.init_device_mesh(mh.device(), {3})
local function cut(placement) return function(x) return mh.distribute_tensor(x, mesh, {placement}) end end

return runs.tests{
  plain = function(x) return x:clone() end, rows = cut(mh.Shard(0, {1, 0, 5})), columns = cut(mh.Shard(1)),
replicated = cut(mh.Replicate()), }
