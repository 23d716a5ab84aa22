-- ranks: 1
local mh = require "moonhalo"
local file = mh.h5.open("../../../examples/climate/data/A1B_north_america.nc")
print(file["air_temprature"].shape)
--[==[
dataset_misspelt.lua:4: open: no dataset "air_temprature" in file "../../../examples/climate/data/A1B_north_america.nc"; did you mean 'air_temperature'?
  have  10 datasets, such as air_temperature, bnds, forecast_period, forecast_reference_time, height
  fix   name a dataset; keys() lists them
  4 | print(file["air_temprature"].shape)
]==]
