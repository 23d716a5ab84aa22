-- ranks: 1
local mh = require "moonhalo"
local x = mh.arange(12):view(3, 4)
print(x[:, 0])
--[==[
index_column.lua:4: unexpected symbol near ':'
  fix   slices are strings: x["0:2"], x[":, 1"]
  4 | print(x[:, 0])
]==]
