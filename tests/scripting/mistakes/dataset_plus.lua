-- ranks: 1
local mh = require "moonhalo"
local file = mh.h5.open("../../../examples/climate/data/A1B_north_america.nc")
local celsius = file["air_temperature"] - 273.15
--[==[
dataset_plus.lua:4: attempt to perform arithmetic on a Dataset value (field 'air_temperature')
  fix   data:read() gives its tensor, data["0:10"]:read() that of some rows
  4 | local celsius = file["air_temperature"] - 273.15
]==]
