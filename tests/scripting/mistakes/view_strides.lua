-- ranks: 1
local mh = require "moonhalo"
local y = mh.arange(12):view(3, 4):t():view(12)
--[==[
view_strides.lua:3: view size is not compatible with input tensor's size and stride (at least one dimension spans across two contiguous subspaces).
  call  view(Tensor int64 [4, 3], 12)
  fix   x:reshape(...), which copies where it must
  3 | local y = mh.arange(12):view(3, 4):t():view(12)
]==]
