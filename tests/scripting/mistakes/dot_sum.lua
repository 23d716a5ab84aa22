local mh = require "moonhalo"
local x = mh.ones{2, 3}
local total = x.sum()
--[==[
dot_sum.lua:3: sum: called without its tensor
  fix   write a colon, not a dot: x:sum()
  3 | local total = x.sum()
]==]
