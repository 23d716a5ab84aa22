-- ranks: 1
local mh = require "moonhalo"
local opt = mh.optim.SGD({mh.nn.Parameter(mh.ones{2})}, {lr = 0.1})
opt.param_groups[0].lr = 0.01
--[==[
groups_from_zero.lua:4: attempt to index a nil value (field 'integer index')
  fix   the table has no such element. Lists count from 1 (dims, rows of tensors and modules of nn.Sequential from 0)
  4 | opt.param_groups[0].lr = 0.01
]==]
