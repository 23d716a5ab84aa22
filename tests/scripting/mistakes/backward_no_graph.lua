local mh = require "moonhalo"
local net = mh.nn.Linear(3, 1)
local loss = mh.no_grad(function() return net(mh.ones{2, 3}):sum() end)
loss:backward()
--[==[
backward_no_graph.lua:4: backward: the tensor was not computed from anything that requires a gradient
  have  Tensor float32 []
  fix   ask for gradients first, {requires_grad = true} or nn.Parameter, and compute outside of mh.no_grad
  4 | loss:backward()
]==]
