-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9}, mesh, {mh.Shard(2)})
--[==[
shard_range.lua:4: Shard(2): dim 2 is out of range for a tensor of shape [9]
  fix   dims count from 0 to 0, and from the end from -1
  4 | local x = mh.distribute_tensor(mh.ones{9}, mesh, {mh.Shard(2)})
]==]
