local mh = require "moonhalo"
local x = mh.arange(12):view(3, 4)
print(x[0, 2])
--[==[
index_two.lua:3: ']' expected near ','
  fix   Lua takes one index in brackets: x["0, 1"] for the element (0, 1), x[":, 1"] for a column
  3 | print(x[0, 2])
]==]
