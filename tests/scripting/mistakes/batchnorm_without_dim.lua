-- ranks: 1
local mh = require "moonhalo"
local norm = mh.nn.BatchNorm(8)
--[==[
batchnorm_without_dim.lua:3: nn: no module 'BatchNorm'; did you mean 'BatchNorm1d', 'BatchNorm2d' or 'BatchNorm3d'?
  3 | local norm = mh.nn.BatchNorm(8)
]==]
