-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
local set = data:windows{inputs = {fields = {"air_temperature"}, steps = {0, 1.5}}}
--[==[
data_steps.lua:4: windows: inputs.steps has 1.5
  have  [0,1.5]
  fix   give integers, each once, in the order in which channels shall come
  4 | local set = data:windows{inputs = {fields = {"air_temperature"}, steps = {0, 1.5}}}
]==]
