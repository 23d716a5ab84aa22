-- ranks: 1
local mh = require "moonhalo"
local x = mh.tensor{{1, 2}, {3}}
--[==[
print_extra.lua:3: tensor: lists of dimension 1 differ in length: 2 and 1
  fix   give every list of a dimension as many elements
  3 | local x = mh.tensor{{1, 2}, {3}}
]==]
