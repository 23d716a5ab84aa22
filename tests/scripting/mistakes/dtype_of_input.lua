local mh = require "moonhalo"
local net = mh.nn.Sequential(mh.nn.Linear(3, 2))
net(mh.ones({1, 3}, {dtype = "float64"}))
--[==[
dtype_of_input.lua:3: linear: mat1 and mat2 must have the same dtype, but got Double and Float
  call  linear(Tensor float64 [1, 3], Tensor float32 [2, 3], Tensor float32 [2])
  fix   convert one of them: x:float() and x:double() for tensors, net:double() for a module
  in    0 (Linear) of Sequential
  3 | net(mh.ones({1, 3}, {dtype = "float64"}))
]==]
