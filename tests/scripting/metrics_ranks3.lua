-- SPDX-License-Identifier: Apache-2.0
-- Y17: metrics and losses of fields that are cut over three ranks, into uneven and empty blocks of each dim.
local mh = require "moonhalo"

local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
local kCuts = {mh.Shard(2, {3, 0, 6}), mh.Shard(3, {5, 6, 1}), mh.Shard(0)}

--- Ensembles {batch, members, channel, y, x} have their dims of space one further.
local function cut(x, step)
  local placement = kCuts[step]
  if x.ndim == 5 and step == 1 then placement = mh.Shard(3, {3, 0, 6}) end
  if x.ndim == 5 and step == 2 then placement = mh.Shard(4, {5, 6, 1}) end
  return mh.distribute_tensor(x, mesh, {placement})
end

return require "support.field_metrics"(mesh, cut)
