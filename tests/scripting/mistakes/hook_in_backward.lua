local mh = require "moonhalo"
local x = mh.ones({2}, {requires_grad = true})
local y = x * 2
y:register_hook(function(gradient)
  return gradient:reshape(3)
end)
y:sum():backward()
--[==[
hook_in_backward.lua:5: reshape: shape '[3]' is invalid for input of size 2
  call  reshape(Tensor float32 [2], 3)
  fix   the sizes must multiply to that number of elements; one may be -1, which is computed
  5 |   return gradient:reshape(3)
]==]
