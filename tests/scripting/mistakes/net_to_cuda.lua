-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2):to("cuda")
--[==[
net_to_cuda.lua:3: device "cuda": no CUDA device can be used here
  fix   leave the device out, or use a build and a machine with CUDA
  3 | local net = mh.nn.Linear(3, 2):to("cuda")
]==]
