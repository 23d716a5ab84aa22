-- ranks: 1
local mh = require "moonhalo"
local a, b = mh.arange(4), mh.arange(4)
if a == b then print("equal") else print("unequal") end
--[==[
equal_tensors.lua:4: Tensor: == and ~= of two tensors give one boolean in Lua
  have  Tensor int64 [4] and Tensor int64 [4]
  fix   x:eq(y) and x:ne(y) compare elements, x:equal(y) all of them; x:is_same(y) is true for two names of one tensor
  4 | if a == b then print("equal") else print("unequal") end
]==]
