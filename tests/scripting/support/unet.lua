-- SPDX-License-Identifier: Apache-2.0
-- A U-Net in 2 or 3 dims for fields of any size: strided convolutions down; up again by a transposed convolution that
-- is given the size to reach, and at the finest level by one that reaches too far and is cropped; the skipped fields
-- are joined. Two such models for support/model_runs.lua, on fields whose sizes are odd at one level or another.
local mh = require "moonhalo"
local nn = mh.nn

local Block = nn.Module:extend("UNetBlock")
function Block:init(dims, from, to, stride)
  self.conv = nn["Conv" .. dims .. "d"](from, to, 3, {stride = stride, padding = 1})
  self.norm = nn.GroupNorm(2, to)
end
function Block:forward(x) return mh.silu(self.norm(self.conv(x))) end

--- The first `shape[d]` elements of each dim d of space.
local function crop(x, shape)
  for d = 3, #shape do x = x:narrow(d - 1, 0, shape[d]) end
  return x
end

local UNet = nn.Module:extend("UNet")
--- `channels`: of the field, then of every level from fine to coarse.
function UNet:init(dims, channels)
  local transposed = nn["ConvTranspose" .. dims .. "d"]
  self.enter = Block(dims, channels[1], channels[2], 1)
  self.down = nn.ModuleList{}
  self.up = nn.ModuleList{}
  self.join = nn.ModuleList{}
  for level = 2, #channels - 1 do
    local fine, coarse = channels[level], channels[level + 1]
    self.down:append(Block(dims, fine, coarse, 2))
    self.up:append(level == 2 and transposed(coarse, fine, 2, {stride = 2})
      or transposed(coarse, fine, 3, {stride = 2, padding = 1}))
    self.join:append(Block(dims, 2 * fine, fine, 1))
  end
  self.leave = nn["Conv" .. dims .. "d"](channels[2], 1, 1)
end
function UNet:forward(x)
  local skipped = {self.enter(x)}
  for level = 1, #self.down do skipped[level + 1] = self.down[level - 1](skipped[level]) end
  local y = table.remove(skipped)
  for level = #skipped, 1, -1 do
    local skip, up = skipped[level], self.up[level - 1]
    y = level == 1 and crop(up(y), skip.shape) or up(y, skip.shape)
    y = self.join[level - 1](mh.cat({y, skip}, 1))
  end
  return self.leave(y)
end

local function model(dims, channels, shape)
  return {
    network = function() return UNet(dims, channels):double() end,
    sample = function()
      local target = {table.unpack(shape)}
      target[2] = 1
      return {x = mh.randn(shape, {dtype = "float64"}), y = mh.randn(target, {dtype = "float64"})}
    end,
    predict = function(net, samples) return net(samples.x) end,
  }
end

return {
  flat = model(2, {2, 4, 6, 6, 8}, {2, 2, 21, 14}),
  deep = model(3, {1, 4, 4, 6}, {1, 1, 11, 9, 10}),
}
