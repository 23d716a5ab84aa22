-- ranks: 1
local mh = require "moonhalo"
local y = mh.nn.Conv2d(1, 8, 3)(mh.ones{8, 8})
--[==[
conv_input_dims.lua:3: Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [8, 8]
  call  conv2d(Tensor float32 [8, 8], Tensor float32 [8, 1, 3, 3], Tensor float32 [8], {1, 1}, {0, 0}, {1, 1}, 1)
  fix   the dims are (batch, channels, ...); x:unsqueeze(0) adds one of size 1
  in    Conv2d
  3 | local y = mh.nn.Conv2d(1, 8, 3)(mh.ones{8, 8})
]==]
