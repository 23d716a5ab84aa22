-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
local set = data:windows{inputs = {fields = {"air_temprature"}, steps = {0}}}
--[==[
data_field.lua:4: windows: no field 'air_temprature'; did you mean 'air_temperature'?
  have  air_temperature, forecast_period
  fix   give the name of one of them
  4 | local set = data:windows{inputs = {fields = {"air_temprature"}, steps = {0}}}
]==]
