-- SPDX-License-Identifier: Apache-2.0
-- Layers on the functions of functional_windows.lua, and those that move points between space and channels.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local F = require "moonhalo.functional"
local base = require "moonhalo.nn.module"

local Module, show = base.Module, base.Module.show
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local window = {}

--- A class that keeps its options and calls `forward(self, x, ...)`; prints those in `shown`.
local function layer(name, entries, shown, forward)
  local spec = signature(name, entries)
  local class = Module:extend(name)
  function class:init(...)
    self:_keep(spec, read(spec, ...))
  end
  class.forward = forward
  function class:extra_repr()
    local parts = {}
    for _, key in ipairs(shown) do
      if self[key] ~= nil then parts[#parts + 1] = key .. "=" .. show(self[key]) end
    end
    return table.concat(parts, ", ")
  end
  window[name] = class
end

for dims = 1, 3 do
  layer("LPPool" .. dims .. "d", {"norm_type", "kernel_size", optional "stride", {"ceil_mode", false}},
    {"norm_type", "kernel_size", "stride", "ceil_mode"}, function(self, x)
      return F["lp_pool" .. dims .. "d"](x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)
    end)
  layer("MaxUnpool" .. dims .. "d", {"kernel_size", optional "stride", {"padding", 0}},
    {"kernel_size", "stride", "padding"}, function(self, x, indices, output_size)
      return F["max_unpool" .. dims .. "d"](x, indices, self.kernel_size, self.stride, self.padding, output_size)
    end)
end

for dims = 2, 3 do
  layer("FractionalMaxPool" .. dims .. "d", {"kernel_size", optional "output_size", optional "output_ratio",
    {"return_indices", false}, optional "random_samples"}, {"kernel_size", "output_size", "output_ratio"},
      function(self, x)
      return F["fractional_max_pool" .. dims .. "d"](x, self.kernel_size, self.output_size, self.output_ratio,
        self.return_indices, self.random_samples)
    end)
end

layer("LocalResponseNorm", {"size", {"alpha", 1e-4}, {"beta", 0.75}, {"k", 1.0}}, {"size", "alpha", "beta", "k"},
  function(self, x) return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k) end)

local kBlocks = {{"dilation", 1}, {"padding", 0}, {"stride", 1}}
layer("Unfold", {"kernel_size", table.unpack(kBlocks)}, {"kernel_size", "dilation", "padding", "stride"},
  function(self, x) return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride) end)
layer("Fold", {"output_size", "kernel_size", table.unpack(kBlocks)},
  {"output_size", "kernel_size", "dilation", "padding", "stride"},
  function(self, x) return F.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride) end)

layer("PixelShuffle", {"upscale_factor"}, {"upscale_factor"},
    function(self, x) return mh.pixel_shuffle(x, self.upscale_factor) end)
layer("PixelUnshuffle", {"downscale_factor"}, {"downscale_factor"},
  function(self, x) return mh.pixel_unshuffle(x, self.downscale_factor) end)
layer("ChannelShuffle", {"groups"}, {"groups"}, function(self, x) return mh.channel_shuffle(x, self.groups) end)

layer("UpsamplingNearest2d", {optional "size", optional "scale_factor"}, {"size", "scale_factor"},
  function(self, x) return F.interpolate(x, {size = self.size, scale_factor = self.scale_factor}) end)
layer("UpsamplingBilinear2d", {optional "size", optional "scale_factor"}, {"size", "scale_factor"}, function(self, x)
  return F.interpolate(x, {size = self.size, scale_factor = self.scale_factor, mode = "bilinear", align_corners = true})
end)

return window
