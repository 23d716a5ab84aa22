local mh = require "moonhalo"
local x = mh.arange(4)
print(x[4])
--[==[
index_range.lua:3: index 4 is out of range for dimension 0 of size 4
  have  shape [4]
  fix   indices go from 0 to 3, from the end from -1 to -4
  3 | print(x[4])
]==]
