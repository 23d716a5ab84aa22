-- ranks: 2
local mh = require "moonhalo"
mh.init_device_mesh("cpu", {2}, {rows = 1})
--[==[
mesh_names_by_name.lua:3: init_device_mesh: bad argument #3, expected a list of strings (the table has no element 1, but the key 'rows'), got {rows = 1}
  3 | mh.init_device_mesh("cpu", {2}, {rows = 1})
]==]
