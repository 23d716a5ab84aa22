local mh = require "moonhalo"
local x = mh.ones{2, 2}:unsqeeze(0)
--[==[
misspelt_operator.lua:2: Tensor: no attribute, method or operator 'unsqeeze'; did you mean 'unsqueeze' or 'unsqueeze_'?
  2 | local x = mh.ones{2, 2}:unsqeeze(0)
]==]
