-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3}, {"data"})
local part = mesh["domain"]
--[==[
mesh_unknown_name.lua:4: mesh(3: data): no mesh dimension named "domain"
  have  data
  fix   name one of these, or name the dimensions where the mesh is made
  4 | local part = mesh["domain"]
]==]
