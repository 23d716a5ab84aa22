-- ranks: 1
local mh = require "moonhalo"
local x = mh.arange(6):view(2, 3)
for i = 1, #x do print(x[i]) end
--[==[
tensor([3, 4, 5])
length_of_tensor.lua:4: index 2 is out of range for dimension 0 of size 2
  have  shape [2, 3]
  fix   indices go from 0 to 1, from the end from -1 to -2
  4 | for i = 1, #x do print(x[i]) end
]==]
