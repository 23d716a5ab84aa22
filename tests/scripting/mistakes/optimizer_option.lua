-- ranks: 1
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.AdamW(net:parameters(), {lr = 1e-3, weight_dekay = 0.1})
--[==[
optimizer_option.lua:4: AdamW: unknown option 'weight_dekay'; did you mean 'weight_decay'?
  have  lr, betas, eps, weight_decay, amsgrad
  4 | local opt = mh.optim.AdamW(net:parameters(), {lr = 1e-3, weight_dekay = 0.1})
]==]
