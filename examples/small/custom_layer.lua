-- SPDX-License-Identifier: Apache-2.0
-- A layer with parameters of its own: it says nothing about ranks, and is the same on blocks.
local mh = require "moonhalo"
local nn = mh.nn
mh.manual_seed(1)

local Gate = nn.Module:extend("Gate")
function Gate:init(channels)
  self.conv = nn.Conv2d(channels, 2 * channels, 3, {padding = 1})
  self.slope = nn.Parameter(mh.ones{channels, 1, 1})
end
function Gate:forward(x)
  local value, gate = table.unpack(self.conv(x):chunk(2, {dim = 1}))
  return x + value * (gate * self.slope):sigmoid()
end

local layer = Gate(4):double()
mh.testing.same_as_plain(function(x) return layer(x) end, {mh.randn({2, 4, 9, 7}, {dtype = "float64"})}, {draws = 3})
print(layer:num_parameters())  --> 300
