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
  fix   make the plan for mesh(1x3: domain, tp), of placements (not of styles), one for each dim as here, or give full_tensor(), which counts as replicated
  in    Linear
  8 | net(x)
]==]
