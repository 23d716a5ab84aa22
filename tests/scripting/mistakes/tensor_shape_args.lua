-- ranks: 1
local mh = require "moonhalo"
local x = mh.randn(3, 4)
local y = x:permute{1, 1}
--[==[
tensor_shape_args.lua:4: permute(): duplicate dims are not allowed.
  call  permute(Tensor float32 [3, 4], {1, 1})
  fix   name every dim once
  4 | local y = x:permute{1, 1}
]==]
