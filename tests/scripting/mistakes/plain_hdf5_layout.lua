-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc", {layout = "pdebench"})
--[==[
plain_hdf5_layout.lua:3: data.open: '../../../examples/climate/data/A1B_north_america.nc' is not a file of layout 'pdebench'
  have  air_temperature, bnds, forecast_period, forecast_reference_time, height, latitude, latitude_longitude, longitude, time, time_bnds
  fix   leave layout out; dims = {names} says what the dims of a plain file are
  3 | local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc", {layout = "pdebench"})
]==]
