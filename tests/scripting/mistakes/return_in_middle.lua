-- ranks: 1
local mh = require "moonhalo"
local function f() return 1 print(2) end
--[==[
return_in_middle.lua:3: 'end' expected near 'print'
  fix   return is the last statement of its block: write do return value end
  3 | local function f() return 1 print(2) end
]==]
