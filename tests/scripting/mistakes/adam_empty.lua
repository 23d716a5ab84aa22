-- ranks: 1
local mh = require "moonhalo"
local opt = mh.optim.Adam({}, {lr = 1e-3})
--[==[
adam_empty.lua:3: Adam: the list of parameters is empty
  fix   keep layers in the module (self.fc = nn.Linear(3, 2) in init), and give net:parameters()
  3 | local opt = mh.optim.Adam({}, {lr = 1e-3})
]==]
