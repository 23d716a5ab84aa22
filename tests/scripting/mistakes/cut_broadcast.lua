-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 2}, mesh, {mh.Shard(0)})
local y = mh.distribute_tensor(mh.ones{8, 2}, mesh, {mh.Shard(0)})
local z = x + y
--[==[
cut_broadcast.lua:6: aten::add.Tensor: the sizes of the tensors do not broadcast
  have  aten::add.Tensor(self = [9, 2] on mesh(3: dim_0): Shard(0, {3, 3, 3}), other = [8, 2] on mesh(3: dim_0): Shard(0, {3, 3, 2}), alpha = 1)
  fix   dims are matched from the last one: give equal sizes, or 1, which fits every size
  call  Tensor float32 [9, 2] + Tensor float32 [8, 2]
  6 | local z = x + y
]==]
