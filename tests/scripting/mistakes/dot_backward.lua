-- ranks: 1
local mh = require "moonhalo"
local w = mh.ones({3}, {requires_grad = true})
w:sum().backward()
--[==[
dot_backward.lua:4: backward: called without its tensor
  fix   write a colon, not a dot: x:backward()
  4 | w:sum().backward()
]==]
