-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local y = net.forward(mh.ones{1, 3})
--[==[
dot_forward.lua:4: Tensor: no attribute, method or operator 'weight'
  fix   self is a tensor here: call the module, net(x), or write a colon, not a dot, before the method's name
  4 | local y = net.forward(mh.ones{1, 3})
]==]
