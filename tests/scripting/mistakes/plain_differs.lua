-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 2}, mesh, {mh.Shard(0)})
local y = x + mh.full({2}, mh.rank() + 0.5)
--[==[
plain_differs.lua:5: aten::add: argument 'other', a plain tensor, is not the same on all ranks; beside ShardTensors it counts as replicated
  have  shape [2], Float; rank 0
        rank 1 holds others: element [0] is 1.5, on rank 0 0.5; 2 of 2 numbers differ, by up to 1
        rank 2 holds others: element [0] is 2.5, on rank 0 0.5; 2 of 2 numbers differ, by up to 2
  fix   initialise it identically on all ranks: one mh.manual_seed for all before weights are made, math.randomseed with one seed, one mh.distribute_tensor of what one rank read; a rank's block of a larger tensor becomes a part by mh.from_local. mh.check_replicated(false) switches this check off
  call  Tensor float32 [9, 2] + Tensor float32 [2]
  5 | local y = x + mh.full({2}, mh.rank() + 0.5)
]==]
