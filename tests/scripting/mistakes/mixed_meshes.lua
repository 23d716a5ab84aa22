-- ranks: 3
local mh = require "moonhalo"
local n = mh.world_size()
local mesh = mh.init_device_mesh("cpu", {1, n}, {"domain", "tp"})
local net = mh.nn.Linear(6, 6)
mh.parallelize_module(net, mesh["tp"], mh.ColwiseParallel())
local x = mh.distribute_tensor(mh.ones{4, 6}, mesh, {mh.Shard(0), mh.Replicate()})
net(x)
--[==[
mixed_meshes.lua:8: 'input': the tensor lives on mesh(1x3: domain, tp), the plan is for mesh(3: tp)
  have  [4, 6] on mesh(1x3: domain, tp): Shard(0, {4}), Replicate()
  fix   use tensors of the plan's mesh, or a plan for the mesh of the tensors, with one placement for each of its dimensions
  in    Linear
  8 | net(x)
]==]
