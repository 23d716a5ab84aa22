-- ranks: 3
local mh = require "moonhalo"
local n = mh.world_size()
local mesh = mh.init_device_mesh("cpu", {1, n}, {"domain", "tp"})
local net = mh.nn.Linear(6, 6)
mh.parallelize_module(net, mesh["tp"], mh.ColwiseParallel())
local x = mh.distribute_tensor(mh.ones{4, 6}, mesh, {mh.Shard(0), mh.Replicate()})
net(x)
--[==[
mixed_meshes.lua:8: linear: moonhalo::contract: the tensors live on different meshes
  have  mesh(1x3: domain, tp) and mesh(3: tp)
  fix   fully_shard or replicate the module over the dims that mesh(3: tp) lacks, or lift the tensor to the whole mesh
  call  linear(Tensor float32 [4, 6], Tensor float32 [6, 6], Tensor float32 [6])
  in    Linear
  8 | net(x)
]==]
