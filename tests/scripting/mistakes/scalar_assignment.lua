local mh = require "moonhalo"
local x = mh.arange(12):view(3, 4)
x[":, 0:2"] = mh.ones{3}
--[==[
scalar_assignment.lua:3: index: a value of shape [3] does not fit the selected shape [3, 2]
  fix   dims are matched from the last one: give a value of that shape, or with 1 for dims that repeat it
  3 | x[":, 0:2"] = mh.ones{3}
]==]
