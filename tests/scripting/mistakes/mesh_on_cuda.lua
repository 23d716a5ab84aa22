-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cuda", {3})
--[==[
mesh_on_cuda.lua:3: init_device_mesh: no CUDA device can be used here
  have  device type "cuda", mesh shape [3]
  fix   use "cpu", or a build with CUDA on a machine that has a GPU
  3 | local mesh = mh.init_device_mesh("cuda", {3})
]==]
