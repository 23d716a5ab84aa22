-- ranks: 1
local mh = require "moonhalo"
local file = mh.h5.open("../../../examples/climate/data/A1B_north_america.nc")
print(file["air_temperature"]:raed().shape)
--[==[
file_method.lua:4: Dataset: no attribute, method or dataset 'raed'; did you mean 'read'?
  4 | print(file["air_temperature"]:raed().shape)
]==]
