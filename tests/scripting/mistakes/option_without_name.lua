local mh = require "moonhalo"
local net = mh.nn.Linear(3, 1)
local opt = mh.optim.Adam(net:parameters(), 1e-3)
--[==[
option_without_name.lua:3: Adam: the options are a table, got 0.001
  fix   name it, as in {lr = 0.001}
  3 | local opt = mh.optim.Adam(net:parameters(), 1e-3)
]==]
