-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
local set = data:window{inputs = {fields = {"air_temperature"}, steps = {0}}}
--[==[
data_method.lua:4: Collection: no field or method 'window'; did you mean 'windows'?
  have  add_field, axis, boundary, calendar, coordinates, dates, fields, files, first_steps, gaps, guessed, lacking, layer_of_field, layout, meta, runs, space, static_file, step, steps, time_text, times, versions, windows
  4 | local set = data:window{inputs = {fields = {"air_temperature"}, steps = {0}}}
]==]
