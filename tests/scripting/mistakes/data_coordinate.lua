-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
print(data.coordinates.lat)
--[==[
data_coordinate.lua:4: data.coordinates: no 'lat'
  have  latitude, longitude
  fix   name a dim that has coordinates
  4 | print(data.coordinates.lat)
]==]
