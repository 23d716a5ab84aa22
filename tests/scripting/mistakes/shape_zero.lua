local mh = require "moonhalo"
local x = mh.arange(12):view(3, 4)
local rows = x.shape[0]
--[==[
shape_zero.lua:3: x.shape[0]: x.shape is a Lua list, which counts from 1
  fix   x.shape[1] or x:size(0)
  3 | local rows = x.shape[0]
]==]
