local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = true})
local y = w:sigmoid()
y:add_(1)
y:sum():backward()
--[==[
in_place_saved.lua:5: backward: one of the variables needed for gradient computation has been modified by an inplace operation: [CPUFloatType [3]], which is output 0 of SigmoidBackward0, is at version 1; expected version 0 instead.
  fix   write the result elsewhere (y = y + 1 for y:add_(1)), or change a copy, y:clone()
  5 | y:sum():backward()
]==]
