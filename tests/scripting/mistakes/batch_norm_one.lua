-- ranks: 1
local mh = require "moonhalo"
local y = mh.nn.BatchNorm1d(2)(mh.ones{1, 2})
--[==[
batch_norm_one.lua:3: BatchNorm1d: expected more than 1 value per channel when training
  have  an input {1, 2}
  fix   give a larger batch, or call eval() first
  in    BatchNorm1d
  3 | local y = mh.nn.BatchNorm1d(2)(mh.ones{1, 2})
]==]
