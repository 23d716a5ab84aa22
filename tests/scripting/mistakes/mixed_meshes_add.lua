-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {1, 3}, {"domain", "tp"})
local x = mh.distribute_tensor(mh.ones{4, 6}, mesh, {mh.Shard(0), mh.Replicate()})
local bias = mh.distribute_tensor(mh.ones{6}, mesh["tp"], {mh.Shard(0)})
local y = x + bias
--[==[
mixed_meshes_add.lua:6: aten::add.Tensor: the tensors live on different meshes
  have  mesh(1x3: domain, tp) and mesh(3: tp)
  fix   fully_shard or replicate the module over the dims that mesh(3: tp) lacks, or lift the tensor to the whole mesh
  call  Tensor float32 [4, 6] + Tensor float32 [6]
  6 | local y = x + bias
]==]
