-- mpi: 2
local mh = require "moonhalo"
local x = mh.arange(12):view(3, 4)
print(x[{0, 2}])
--[==[
index_list.lua:4: index {0, 2}: a list of integers may mean one element or several rows
  fix   x["0, 2"] for the element (0, 2), x[mh.tensor{0, 2}] or x:index_select(0, mh.tensor{0, 2}) for rows 0, 2
  4 | print(x[{0, 2}])
]==]
