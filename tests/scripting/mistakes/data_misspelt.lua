-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.opne("../../../examples/climate/data/A1B_north_america.nc")
--[==[
data_misspelt.lua:3: data: no 'opne'; did you mean 'open'?
  have  DistributedSampler, Sampler, from_tensors, layouts, load_statistics, open
  3 | local data = mh.data.opne("../../../examples/climate/data/A1B_north_america.nc")
]==]
