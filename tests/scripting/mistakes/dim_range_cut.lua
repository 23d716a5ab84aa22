-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 2}, mesh, {mh.Shard(0)})
local y = x:softmax(-3)
--[==[
dim_range_cut.lua:5: softmax: Dimension out of range (expected to be in range of [-2, 1], but got -3)
  call  softmax(Tensor float32 [9, 2], -3)
  fix   dims count from 0, and from the end from -1
  5 | local y = x:softmax(-3)
]==]
