-- ranks: 1
local mh = require "moonhalo"
local sched = mh.optim.StepLR(mh.nn.Linear(3, 2), 10)
--[==[
step_of_class.lua:3: StepLR: the first argument is Linear, expected an optimizer
  fix   make one first: local opt = optim.AdamW(net:parameters(), {lr = 1e-3})
  3 | local sched = mh.optim.StepLR(mh.nn.Linear(3, 2), 10)
]==]
