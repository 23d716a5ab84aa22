-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3}, {"domain"})
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
local set = data:windows{inputs = {fields = {"air_temperature"}, steps = {0}}}
local loader = set:loader{mesh = mesh, cut = {lat = "domain"}, batch = 2}
--[==[
data_cut.lua:6: loader: 'lat' is not a dim of the fields
  have  batch, latitude, longitude
  fix   name one of these in cut
  6 | local loader = set:loader{mesh = mesh, cut = {lat = "domain"}, batch = 2}
]==]
