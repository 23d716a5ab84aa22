local mh = require "moonhalo"
print(mh.ones{2, 2}:item())
--[==[
item_of_many.lua:2: item: a tensor of 4 elements is not one number
  have  Tensor float32 [2, 2]
  fix   x:tolist(), or select an element first
  2 | print(mh.ones{2, 2}:item())
]==]
