-- ranks: 1
local mh = require "moonhalo"
local x = mh.ones{4, 3}
local n = x.size[1]
--[==[
size_as_field.lua:4: attempt to index a function value (field 'size')
  fix   'size' is a function: call it, object:size(...)
  4 | local n = x.size[1]
]==]
