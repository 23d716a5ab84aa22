-- ranks: 1
local torch = require "torch"
--[==[
require_torch.lua:2: module 'torch' not found
  fix   local mh = require "moonhalo" has the functions of torch, mh.nn and mh.optim its modules and optimizers
  2 | local torch = require "torch"
]==]
