-- ranks: 1
local mh = require "moonhalo"
local loss = mh.mse_loss(mh.ones{4, 3}, mh.ones{4})
--[==[
loss_shapes.lua:3: mse_loss: input and target have different shapes
  have  [4, 3] and [4]
  fix   give a target of the shape of the input
  3 | local loss = mh.mse_loss(mh.ones{4, 3}, mh.ones{4})
]==]
