local mh = require "moonhalo"
local x = mh.randn({3}, {device = "cuda"})
--[==[
device_cuda.lua:2: device "cuda": no CUDA device can be used here
  fix   leave the device out, or use a build and a machine with CUDA
  2 | local x = mh.randn({3}, {device = "cuda"})
]==]
