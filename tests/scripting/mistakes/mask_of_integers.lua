-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{6}, mesh, {mh.Shard(0)})
local y = x:masked_select(mh.arange(6))
--[==[
mask_of_integers.lua:5: aten::masked_select: the mask holds Long, not bool
  have  aten::masked_select(self = [6] on mesh(3: dim_0): Shard(0, {2, 2, 2}), mask = plain [6])
  fix   compare with a number, or convert the mask to bool
  call  masked_select(Tensor float32 [6], Tensor int64 [6])
  5 | local y = x:masked_select(mh.arange(6))
]==]
