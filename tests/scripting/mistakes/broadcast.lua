local mh = require "moonhalo"
local x, bias = mh.ones{4, 3}, mh.ones{4}
local y = x + bias
--[==[
broadcast.lua:3: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1
  call  Tensor float32 [4, 3] + Tensor float32 [4]
  fix   dims are matched from the last one; x:unsqueeze(dim) adds one of size 1, which fits every size
  3 | local y = x + bias
]==]
