local mh = require "moonhalo"
local x = mh.arange(4)
if x > 0 then print("positive") end
--[==[
comparison.lua:3: Tensor: <, <=, > and >= give one boolean in Lua
  fix   compare elements by x:lt(y), x:le(y), x:gt(y), x:ge(y)
  3 | if x > 0 then print("positive") end
]==]
