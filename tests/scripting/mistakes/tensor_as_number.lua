local mh = require "moonhalo"
local loss = mh.ones{1}
print(("%.3f"):format(loss))
--[==[
tensor_as_number.lua:3: bad argument #1 to 'format' (number expected, got Tensor)
  fix   x:item() gives the number of a tensor
  3 | print(("%.3f"):format(loss))
]==]
