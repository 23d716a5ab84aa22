local mh = require "moonhalo"
local nn = mh.nn
local net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(4, 1, 3))
local function predict(x)
  return net(x)
end
predict(mh.ones{1, 1, 8, 8})
--[==[
sequential_layer.lua:5: conv2d: Given groups=1, weight of size [1, 4, 3, 3], expected input[1, 8, 6, 6] to have 4 channels, but got 8 channels instead
  call  conv2d(Tensor float32 [1, 8, 6, 6], Tensor float32 [1, 4, 3, 3], Tensor float32 [1], {1, 1}, {0, 0}, {1, 1}, 1)
  fix   give the layer as many in_channels as the input has; the dims are (batch, channels, ...)
  in    2 (Conv2d) of Sequential
  5 |   return net(x)
stack traceback:
    sequential_layer.lua:5: in local 'predict'
    sequential_layer.lua:7: in main chunk
]==]
