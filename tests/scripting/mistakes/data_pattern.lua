-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/dada/*.nc")
--[==[
data_pattern.lua:3: data.open: no file matches '../../../examples/climate/dada/*.nc'
  have  no folder '../../../examples/climate/dada'
  fix   correct the path
  3 | local data = mh.data.open("../../../examples/climate/dada/*.nc")
]==]
