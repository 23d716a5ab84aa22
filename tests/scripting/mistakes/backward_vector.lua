local mh = require "moonhalo"
local net = mh.nn.Linear(3, 1)
net(mh.ones{2, 3}):backward()
--[==[
backward_vector.lua:3: backward: a tensor of 2 elements needs the gradient of each
  have  Tensor float32 [2, 1]
  fix   reduce it first, x:sum():backward(), or give a gradient of its shape, x:backward(g)
  3 | net(mh.ones{2, 3}):backward()
]==]
