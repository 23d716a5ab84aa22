-- ranks: 1
local mh = require "moonhalo"
local loss = mh.mse_loss(mh.ones{4, 3}, mh.ones{4})
--[==[
loss_shapes.lua:3: mse_loss: input and target have different shapes
  have  [4, 3] and [4]
  fix   expand one of them, if broadcasting is meant
  3 | local loss = mh.mse_loss(mh.ones{4, 3}, mh.ones{4})
]==]
