-- ranks: 1
local mh = require "moonhalo"
local z = mh.ones{2} * 1i
--[==[
imaginary_number.lua:3: malformed number near '1i'
  fix   Lua has no complex numbers: mh.complex(re, im) makes a tensor of two tensors
  3 | local z = mh.ones{2} * 1i
]==]
