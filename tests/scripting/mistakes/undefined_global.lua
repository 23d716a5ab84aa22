local mh = require "moonhalo"
local pad = 1
local net = mh.nn.Conv2d(1, 8, 3, {padding = padd})
--[==[
undefined_global.lua:3: no variable 'padd'; did you mean 'pad'?
  have  a global that nothing was assigned to
  fix   assign it first (nil will do), or test for it with rawget(_G, "padd")
  3 | local net = mh.nn.Conv2d(1, 8, 3, {padding = padd})
]==]
