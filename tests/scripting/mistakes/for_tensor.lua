-- ranks: 1
local mh = require "moonhalo"
for row in mh.ones{3, 2} do print(row) end
--[==[
for_tensor.lua:3: attempt to call a Tensor value (for iterator 'for iterator')
  fix   for i, row in x:iter() do
  3 | for row in mh.ones{3, 2} do print(row) end
]==]
