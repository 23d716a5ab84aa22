-- ranks: 1
local mh = require "moonhalo"
local file = mh.h5.open("../../../examples/climate/data/A1B_north_amerika.nc")
--[==[
file_misspelt.lua:3: open: file "../../../examples/climate/data/A1B_north_amerika.nc" does not exist; did you mean 'A1B_north_america.nc' or 'E1_north_america.nc'?
  have  folder ROOT/examples/climate/data
  fix   give the path from there, or an absolute one
  3 | local file = mh.h5.open("../../../examples/climate/data/A1B_north_amerika.nc")
]==]
