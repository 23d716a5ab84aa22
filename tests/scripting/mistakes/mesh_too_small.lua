-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {2, 1})
--[==[
mesh_too_small.lua:3: init_device_mesh: a mesh of shape [2, 1] has 2 ranks, the world has 3
  fix   start the program with 2 ranks (--ranks 2), or choose a shape whose product is 3
  3 | local mesh = mh.init_device_mesh("cpu", {2, 1})
]==]
