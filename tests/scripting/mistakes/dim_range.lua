-- ranks: 1
local mh = require "moonhalo"
local y = mh.ones{4, 3}:sum{dim = 2}
--[==[
dim_range.lua:3: sum: Dimension out of range (expected to be in range of [-2, 1], but got 2)
  call  sum(Tensor float32 [4, 3], dim = 2)
  fix   dims count from 0, and from the end from -1
  3 | local y = mh.ones{4, 3}:sum{dim = 2}
]==]
