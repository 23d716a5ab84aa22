-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.open("../../../examples/climate/data/A1B_north_america.nc")
local set = data:windows{inputs = {fields = {"air_temperature"}, steps = {0}}}
local train, valid = set:split{train = {"1950", "1990"}, valid = {"1990", "1999"}}
--[==[
data_split.lua:5: split: 'train' and 'valid' overlap: samples of one would be known from the other
  have  '1950' to '1990' and '1990' to '1999'
  fix   let one begin after the other's end
  5 | local train, valid = set:split{train = {"1950", "1990"}, valid = {"1990", "1999"}}
]==]
