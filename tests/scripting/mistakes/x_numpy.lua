-- ranks: 1
local mh = require "moonhalo"
local values = mh.ones{3}:numpy()
--[==[
x_numpy.lua:3: Tensor: no attribute, method or operator 'numpy'
  fix   x:tolist() gives lists, mh.h5 and mh.safetensors.save write files
  3 | local values = mh.ones{3}:numpy()
]==]
