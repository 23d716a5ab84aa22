local mh = require "moonhalo"
local net = mh.nn.Conv2D(1, 8, 3)
--[==[
misspelt_layer.lua:2: nn: no module 'Conv2D'; did you mean 'Conv2d', 'Conv1d' or 'Conv3d'?
  2 | local net = mh.nn.Conv2D(1, 8, 3)
]==]
