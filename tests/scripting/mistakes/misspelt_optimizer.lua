-- ranks: 1
local mh = require "moonhalo"
local opt = mh.optim.AdamV(mh.nn.Linear(3, 2):parameters())
--[==[
misspelt_optimizer.lua:3: optim: no optimizer or schedule 'AdamV'; did you mean 'Adam' or 'AdamW'?
  3 | local opt = mh.optim.AdamV(mh.nn.Linear(3, 2):parameters())
]==]
