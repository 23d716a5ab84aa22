-- ranks: 1
local mh = require "moonhalo"
local x = mh.ones{4, 3}
local n = x:shape()
--[==[
shape_call.lua:4: attempt to call a table value (method 'shape')
  fix   'shape' is a value, not a function: write .shape without parentheses
  4 | local n = x:shape()
]==]
