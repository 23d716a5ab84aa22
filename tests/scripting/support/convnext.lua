-- SPDX-License-Identifier: Apache-2.0
-- The convolutional network of examples/channel for support/model_runs.lua: 11 latitudes, 10 longitudes.
local mh = require "moonhalo"
local ConvNeXt = require "examples.channel.convnext"

local kShape = {2, 3, 11, 10}
local kF64 = {dtype = "float64"}

return {
  keeps_blocks = true,
  network = function() return ConvNeXt{channels = 3, width = 6, depth = 2, scale = 0.7}:double() end,
  sample = function() return {x = mh.randn(kShape, kF64), y = mh.randn(kShape, kF64)} end,
  predict = function(net, samples) return samples.x + net(samples.x) end,
}
