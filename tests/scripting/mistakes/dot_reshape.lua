-- ranks: 1
local mh = require "moonhalo"
local x = mh.arange(6).reshape(2, 3)
--[==[
dot_reshape.lua:3: reshape: called on 2, which is not a tensor
  fix   write a colon, not a dot: x:reshape(...)
  3 | local x = mh.arange(6).reshape(2, 3)
]==]
