-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 2}, mesh, {mh.Shard(0)})
mh.safetensors.save(os.getenv("SCRATCH") .. "/x.safetensors", {x = x})
--[==[
safetensors_of_a_block.lua:5: safetensors.save: 'x' is a ShardTensor, of which this rank has a block
  fix   mh.checkpoint.save(path, {model = net}) writes whole tensors into path/model.safetensors; or call full_tensor() of each on all ranks and save on one
  5 | mh.safetensors.save(os.getenv("SCRATCH") .. "/x.safetensors", {x = x})
]==]
