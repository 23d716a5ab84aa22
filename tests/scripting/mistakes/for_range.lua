-- ranks: 1
local mh = require "moonhalo"
for i in range(10) do print(i) end
--[==[
for_range.lua:3: no variable 'range'
  fix   for i = 0, n - 1 do counts from 0 to n - 1
  3 | for i in range(10) do print(i) end
]==]
