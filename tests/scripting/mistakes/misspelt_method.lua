-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
for _, p in ipairs(net:paramters()) do print(p) end
--[==[
misspelt_method.lua:4: Linear: no field 'paramters'; did you mean 'parameters'?
  fix   assign it in init (self.paramters = nil will do), or test for it with module:has("paramters")
  4 | for _, p in ipairs(net:paramters()) do print(p) end
]==]
