-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.Adam(net:named_parameters(), {lr = 1e-3})
--[==[
adam_named.lua:4: Adam: expected a list of parameters, got OrderedMap
  fix   Adam(net:parameters(), {lr = 1e-3})
  4 | local opt = mh.optim.Adam(net:named_parameters(), {lr = 1e-3})
]==]
