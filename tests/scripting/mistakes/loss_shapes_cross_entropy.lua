-- ranks: 1
local mh = require "moonhalo"
local loss = mh.cross_entropy(mh.randn{2, 3}, mh.tensor{0, 1, 2})
--[==[
loss_shapes_cross_entropy.lua:3: cross_entropy_loss: Expected input batch_size (2) to match target batch_size (3).
  call  cross_entropy_loss(Tensor float32 [2, 3], Tensor int64 [3], nil, 1, -100, 0.0)
  fix   give one class a row: an int64 tensor [batch], or [batch, height, width] for pictures
  3 | local loss = mh.cross_entropy(mh.randn{2, 3}, mh.tensor{0, 1, 2})
]==]
