local mh = require "moonhalo"
local loss = mh.ones{1}
print("loss " .. loss)
--[==[
tensor_in_text.lua:3: ..: a tensor is not a string
  fix   "loss " .. x:item() for its one number, tostring(x) for all of it
  3 | print("loss " .. loss)
]==]
