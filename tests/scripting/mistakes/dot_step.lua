local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.SGD(net:parameters(), {lr = 0.1})
opt.step()
--[==[
dot_step.lua:4: step: called without its optimizer
  fix   write a colon, not a dot: opt:step()
  4 | opt.step()
]==]
