local mh = require "moonhalo"
local x = mh.tensor({1, 2, 3}, {requires_grad = true})
--[==[
integer_gradient.lua:2: Only Tensors of floating point and complex dtype can require gradients
  fix   convert the values first, x:float() or x:double()
  2 | local x = mh.tensor({1, 2, 3}, {requires_grad = true})
]==]
