local mh = require "moonhalo"
local nn = mh.nn
local function block(width)
  return nn.Conv2d(width, width, 3, {paddding = 1})
end
block(4)
--[==[
tail_constructor.lua:4: Conv2d: unknown option 'paddding'; did you mean 'padding'?
  have  Conv2d(in_channels, out_channels, kernel_size, stride = 1, padding = 0, dilation = 1, groups = 1, bias = true, padding_mode = 'zeros', device, dtype)
  4 |   return nn.Conv2d(width, width, 3, {paddding = 1})
stack traceback:
    tail_constructor.lua:4: in local 'block'
    tail_constructor.lua:6: in main chunk
]==]
