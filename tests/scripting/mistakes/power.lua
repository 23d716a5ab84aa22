-- ranks: 1
local mh = require "moonhalo"
local x = mh.ones{3}
local y = x ** 2
--[==[
power.lua:4: unexpected symbol near '*'
  fix   a power is a ^ b in Lua, of tensors too
  4 | local y = x ** 2
]==]
