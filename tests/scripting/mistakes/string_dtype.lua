-- ranks: 1
local mh = require "moonhalo"
local x = mh.ones({3}, {dtype = "float"})
local y = x:to("flaot64")
--[==[
string_dtype.lua:4: to: bad argument #1, expected a dtype or a device, got 'flaot64'; did you mean 'float64'?
  4 | local y = x:to("flaot64")
]==]
