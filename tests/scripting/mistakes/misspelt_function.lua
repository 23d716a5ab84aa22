-- ranks: 1
local mh = require "moonhalo"
local x = mh.distribute_tensors(mh.ones{3})
--[==[
misspelt_function.lua:3: mh: no function or operator 'distribute_tensors'; did you mean 'distribute_tensor'?
  3 | local x = mh.distribute_tensors(mh.ones{3})
]==]
