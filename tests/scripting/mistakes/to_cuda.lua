-- ranks: 1
local mh = require "moonhalo"
local x = mh.ones{3}:cuda()
--[==[
to_cuda.lua:3: device "cuda": no CUDA device can be used here
  fix   leave the device out, or use a build and a machine with CUDA
  3 | local x = mh.ones{3}:cuda()
]==]
