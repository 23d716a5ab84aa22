-- SPDX-License-Identifier: Apache-2.0
-- A convolutional network for fields on a zonal channel [batch, channels, latitude, longitude]: longitudes close on
-- themselves, latitudes end at walls that reflect. Depthwise 7 x 7 convolutions see space, layers over channels do the
-- rest (Liu et al., "A ConvNet for the 2020s", 2022).
local mh = require "moonhalo"
local nn = mh.nn

--- x and `width` more points on every side: round the channel along longitude, mirrored at the walls.
local function with_surroundings(x, width)
  return mh.pad(mh.pad(x, {width, width, 0, 0}, "circular"), {0, 0, width, width}, "reflect")
end

local Block = nn.Module:extend("ConvNeXtBlock")
function Block:init(channels, scale)
  self.space = nn.Conv2d(channels, channels, 7, {groups = channels})
  self.norm = nn.LayerNorm(channels, {eps = 1e-6})
  self.mix = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
  self.scale = nn.Parameter(mh.full({channels}, scale))
end
function Block:forward(x)
  local y = self.space(with_surroundings(x, 3)):movedim(1, -1)
  return x + (self.mix(self.norm(y)) * self.scale):movedim(-1, 1)
end

local ConvNeXt = nn.Module:extend("ConvNeXt")

--- Options: channels of the field, width (channels within), depth (blocks), scale (of every block's part at first).
function ConvNeXt:init(options)
  self.enter = nn.Conv2d(options.channels, options.width, 1)
  self.blocks = nn.ModuleList{}
  for _ = 1, options.depth do self.blocks:append(Block(options.width, options.scale or 0.1)) end
  self.leave = nn.Conv2d(options.width, options.channels, 1)
end

--- The change of the field.
function ConvNeXt:forward(x)
  local y = self.enter(x)
  for _, block in self.blocks:each() do y = block(y) end
  return self.leave(y)
end

return ConvNeXt
