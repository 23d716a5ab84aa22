-- ranks: 1
local mh = require "moonhalo"
local y = mh.ones{3, 2}:index_select(0, mh.tensor{0, 3})
--[==[
index_select_range.lua:3: index_select: index out of range in self
  call  index_select(Tensor float32 [3, 2], 0, Tensor int64 [2])
  fix   indices count from 0 to the size of the dim minus 1: nn.Embedding(n, ...) has rows 0 to n - 1
  3 | local y = mh.ones{3, 2}:index_select(0, mh.tensor{0, 3})
]==]
