-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.Adam(net, {lr = 1e-3})
--[==[
adam_module.lua:4: Adam: expected a list of parameters, got Linear
  fix   Adam(net:parameters(), {lr = 1e-3})
  4 | local opt = mh.optim.Adam(net, {lr = 1e-3})
]==]
