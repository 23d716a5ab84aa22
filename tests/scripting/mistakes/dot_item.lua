local mh = require "moonhalo"
local x = mh.ones{2, 3}
print(x:sum().item())
--[==[
dot_item.lua:3: item: called without its tensor
  fix   write a colon, not a dot: x:item()
  3 | print(x:sum().item())
]==]
