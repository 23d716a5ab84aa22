local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = true})
w:mul_(2)
--[==[
in_place_leaf.lua:3: mul_: a leaf Variable that requires grad is being used in an in-place operation.
  call  mul_(Tensor float32 [3], 2)
  fix   write inside of mh.no_grad(function() ... end), or to a copy, x:clone()
  3 | w:mul_(2)
]==]
