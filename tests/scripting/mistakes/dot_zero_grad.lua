-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
net.zero_grad()
--[==[
dot_zero_grad.lua:4: zero_grad: called without its module
  fix   write a colon, not a dot: net:zero_grad()
  4 | net.zero_grad()
]==]
