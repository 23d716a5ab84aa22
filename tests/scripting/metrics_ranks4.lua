-- SPDX-License-Identifier: Apache-2.0
-- Y17: metrics and losses of fields on a mesh of two dims, batch and space cut at once, or both dims of space.
local mh = require "moonhalo"

local mesh = mh.init_device_mesh(mh.device(), {2, 2}, {"a", "b"})
local kCuts = {{mh.Shard(0), mh.Shard(2, {9, 0})}, {mh.Shard(2, {4, 5}), mh.Shard(3, {1, 11})},
  {mh.Shard(2), mh.Replicate()}}

local function cut(x, step)
  local placements = {}
  for i, one in ipairs(kCuts[step]) do
    local further = x.ndim == 5 and one:is_shard() and one.dim >= 2
    placements[i] = further and (one.sizes and mh.Shard(one.dim + 1, one.sizes) or mh.Shard(one.dim + 1)) or one
  end
  return mh.distribute_tensor(x, mesh, placements)
end

return require "support.field_metrics"(mesh, cut)
