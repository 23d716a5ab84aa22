-- ranks: 3
local mh = require "moonhalo"
local nn = mh.nn
mh.manual_seed(mh.rank())
local net = nn.Sequential(nn.Linear(4, 4))
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 4}, mesh, {mh.Shard(0)})
local y = net(x)
print(y:sum():item())
--[==[
seed_by_rank.lua:8: linear: aten::addmm: argument 'self', a plain weight, is not the same on all ranks; beside ShardTensors it counts as replicated
  have  shape [4], Float; rank 0
        rank 1 holds others: element [0] is 0.42329, on rank 0 0.0544395; 4 of 4 numbers differ, by up to 0.722359
        rank 2 holds others: element [0] is -0.156209, on rank 0 0.0544395; 4 of 4 numbers differ, by up to 0.72871
  fix   initialise it identically on all ranks: one mh.manual_seed for all before weights are made, math.randomseed with one seed, one mh.distribute_tensor of what one rank read; a rank's block of a larger tensor becomes a part by mh.from_local. mh.check_replicated(false) switches this check off
  call  linear(Tensor float32 [9, 4], Tensor float32 [4, 4], Tensor float32 [4])
  in    0 (Linear) of Sequential
  8 | local y = net(x)
]==]
