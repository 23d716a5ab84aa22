-- mpi: 2
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local list = net.parameters()
--[==[
dot_parameters.lua:4: parameters: called without its module
  fix   write a colon, not a dot: net:parameters()
  4 | local list = net.parameters()
]==]
