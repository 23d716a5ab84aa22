-- ranks: 1
local mh = require "moonhalo"
local x = mh.zeros{1000000, 1000000}
--[==[
too_large.lua:3: zeros: can't allocate memory: you tried to allocate 4000000000000 bytes.
  call  zeros({1000000, 1000000})
  fix   make it smaller, or a ShardTensor: mh.scatter_tensor and mh.distribute_tensor give each rank a block
  3 | local x = mh.zeros{1000000, 1000000}
]==]
