local mh = require "moonhalo"
local t = mh.tensor{3, 4}
local y = mh.cross_entropy(mh.randn{2, 3}, t)
--[==[
class_out_of_range.lua:3: cross_entropy_loss: Target 3 is out of bounds.
  call  cross_entropy_loss(Tensor float32 [2, 3], Tensor int64 [2], nil, 1, -100, 0.0)
  fix   classes are numbered from 0 and below their number, the input's dim 1
  3 | local y = mh.cross_entropy(mh.randn{2, 3}, t)
]==]
