-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3}, {"data", "domain"})
--[==[
mesh_names_many.lua:3: init_device_mesh: 1 dimensions but 2 names
  have  shape [3], names data, domain
  fix   give one name for each dimension, or a shape with as many numbers
  3 | local mesh = mh.init_device_mesh("cpu", {3}, {"data", "domain"})
]==]
