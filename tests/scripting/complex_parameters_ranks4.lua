-- SPDX-License-Identifier: Apache-2.0
-- C4: complex parameters on 2 x 2 ranks.
local mh = require "moonhalo"
local runs = require "support.complex_runs"

local mesh = mh.init_device_mesh(mh.device(), {2, 2})
local function cut(...)
  local placements = {...}
  return function(x) return mh.distribute_tensor(x, mesh, placements) end
end
local R, S = mh.Replicate(), mh.Shard

return runs.tests{plain = function(x) return x:clone() end, plane = cut(S(0, {5, 1}), S(1)), rows = cut(R, S(0)),
    twice = cut(S(0), S(0))}
