-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
print(data.fields.air_temp)
--[==[
data_fields_field.lua:4: data.fields: no 'air_temp'
  have  air_temperature, forecast_period
  fix   name a field of the files, or add one by data:add_field
  4 | print(data.fields.air_temp)
]==]
