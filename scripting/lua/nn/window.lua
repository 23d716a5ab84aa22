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

--- mh.nn.LPPool1d(norm_type, kernel_size, {stride = nil, ceil_mode = false}) -> Module
--- mh.nn.LPPool2d(norm_type, kernel_size, {stride = nil, ceil_mode = false}) -> Module
--- mh.nn.LPPool3d(norm_type, kernel_size, {stride = nil, ceil_mode = false}) -> Module
---   (sum of x^p over each window)^(1/p). The module takes x [batch, channels, space...].
---   norm_type   number      p
---   kernel_size   integer|{integer}   size of the window, one number or one for each dim
---   stride      integer|{integer}?   distance between windows; nil for kernel_size
---   ceil_mode   boolean     also counts a window that is not whole at the end
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.LPPool1d(1, 2)(mh.ones{1, 1, 4}):tolist()    --> {{{2.0, 2.0}}}

--- mh.nn.MaxUnpool1d(kernel_size, {stride = nil, padding = 0}) -> Module
--- mh.nn.MaxUnpool2d(kernel_size, {stride = nil, padding = 0}) -> Module
--- mh.nn.MaxUnpool3d(kernel_size, {stride = nil, padding = 0}) -> Module
---   Puts the values of a max pooling back where they were, with zeros elsewhere. The module takes the values, the
---   indices that the pooling returned, and optionally the size of the result.
---   kernel_size   integer|{integer}   of the pooling
---   stride      integer|{integer}?   of the pooling; nil for kernel_size
---   padding     integer|{integer}   of the pooling
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   errors      ValueError: a size that the pooling cannot have come from
---   example
---     local values, indices = nn.MaxPool1d(2, {return_indices = true})(mh.arange(4):float():reshape{1, 1, 4})
---     nn.MaxUnpool1d(2)(values, indices):tolist()    --> {{{0.0, 1.0, 0.0, 3.0}}}

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

--- mh.nn.FractionalMaxPool2d(kernel_size, {output_size = nil, output_ratio = nil, return_indices = false,
---     random_samples = nil}) -> Module
--- mh.nn.FractionalMaxPool3d(kernel_size, {output_size = nil, output_ratio = nil, return_indices = false,
---     random_samples = nil}) -> Module
---   The largest value of windows that start at random places, as many as output_size. The module takes x [batch,
---   channels, space...].
---   kernel_size   integer|{integer}   size of the window
---   output_size   integer|{integer}?   size of the result; this or output_ratio
---   output_ratio   number|{number}?   size of the result as a part of that of the input
---   return_indices   boolean   a second result says where in space the values were, int64
---   random_samples   Tensor?   [batch, channels, dims] from 0 to 1, in place of random numbers
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of a cut input
---   errors      ValueError: both or neither of output_size and output_ratio
---   example
---     nn.FractionalMaxPool2d(2, {output_size = 3})(mh.randn{1, 2, 7, 7}).shape    --> {1, 2, 3, 3}

for dims = 2, 3 do
  layer("FractionalMaxPool" .. dims .. "d", {"kernel_size", optional "output_size", optional "output_ratio",
    {"return_indices", false}, optional "random_samples"}, {"kernel_size", "output_size", "output_ratio"},
      function(self, x)
      return F["fractional_max_pool" .. dims .. "d"](x, self.kernel_size, self.output_size, self.output_ratio,
        self.return_indices, self.random_samples)
    end)
end

--- mh.nn.LocalResponseNorm(size, {alpha = 1e-4, beta = 0.75, k = 1.0}) -> Module
---   Divides by (k + alpha * mean of the squares of `size` neighbouring channels)^beta. The module takes x [batch,
---   channels, space...].
---   size        integer     number of channels
---   alpha       number      factor of the mean
---   beta        number      exponent
---   k           number      added to the mean
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose channels are cut
---   example
---     nn.LocalResponseNorm(3)(mh.zeros{1, 4, 5}):sum():item()    --> 0.0

layer("LocalResponseNorm", {"size", {"alpha", 1e-4}, {"beta", 0.75}, {"k", 1.0}}, {"size", "alpha", "beta", "k"},
  function(self, x) return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k) end)

--- mh.nn.CrossMapLRN2d(size, {alpha = 1e-4, beta = 0.75, k = 1.0}) -> Module
---   As nn.LocalResponseNorm, for [batch, channels, rows, columns]. Windows of an even size have one channel less, as
---   in PyTorch, but the sum of their squares is divided by size.
---   size        integer     number of channels, at least 1
---   alpha       number      factor of the mean
---   beta        number      exponent
---   k           number      added to the mean
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose channels are cut
---   errors      ValueError: an input of another number of dims
---   example
---     nn.CrossMapLRN2d(3)(mh.zeros{1, 4, 5, 2}):sum():item()    --> 0.0

layer("CrossMapLRN2d", {"size", {"alpha", 1e-4}, {"beta", 0.75}, {"k", 1.0}}, {"size", "alpha", "beta", "k"},
  function(self, x)
    arguments.count("CrossMapLRN2d", "size", self.size, 1)
    if arguments.tensor("CrossMapLRN2d", "the input", x).ndim ~= 4 then
      mh.fail("CrossMapLRN2d: the input has " .. x.ndim .. " dimensions, expected 4")
    end
    local odd = self.size - (1 - self.size % 2)
    return F.local_response_norm(x, odd, self.alpha * odd / self.size, self.beta, self.k)
  end)

local kBlocks = {{"dilation", 1}, {"padding", 0}, {"stride", 1}}
--- mh.nn.Unfold(kernel_size, {dilation = 1, padding = 0, stride = 1}) -> Module
---   The sliding blocks of a field [batch, channels, rows, columns] as [batch, channels * block, positions].
---   kernel_size   integer|{integer}   size of a block
---   dilation    integer|{integer}   distance between the elements of a block
---   padding     integer|{integer}   zeros added on both sides
---   stride      integer|{integer}   distance between blocks
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.Unfold(2)(mh.ones{1, 3, 4, 5}).shape    --> {1, 12, 12}

layer("Unfold", {"kernel_size", table.unpack(kBlocks)}, {"kernel_size", "dilation", "padding", "stride"},
  function(self, x) return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride) end)
--- mh.nn.Fold(output_size, kernel_size, {dilation = 1, padding = 0, stride = 1}) -> Module
---   Adds sliding blocks up where they were taken from: the adjoint of nn.Unfold.
---   output_size   integer|{integer}   rows and columns of the result
---   kernel_size   integer|{integer}   size of a block
---   dilation    integer|{integer}   distance between the elements of a block
---   padding     integer|{integer}   rows removed on both sides
---   stride      integer|{integer}   distance between blocks
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose blocks or positions are cut
---   example
---     nn.Fold({4, 5}, 2)(mh.ones{1, 12, 12}).shape    --> {1, 3, 4, 5}

layer("Fold", {"output_size", "kernel_size", table.unpack(kBlocks)},
  {"output_size", "kernel_size", "dilation", "padding", "stride"},
  function(self, x) return F.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride) end)

--- mh.nn.PixelShuffle(upscale_factor) -> Module
---   Moves channels into space: [batch, channels * r^2, rows, columns] becomes [batch, channels, rows * r, columns *
---   r].
---   upscale_factor   integer   r
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh, where a cut does not fit
---   example
---     nn.PixelShuffle(2)(mh.ones{1, 8, 3, 4}).shape    --> {1, 2, 6, 8}

layer("PixelShuffle", {"upscale_factor"}, {"upscale_factor"},
    function(self, x) return mh.pixel_shuffle(x, self.upscale_factor) end)
--- mh.nn.PixelUnshuffle(downscale_factor) -> Module
---   Moves space into channels: the inverse of nn.PixelShuffle.
---   downscale_factor   integer   divides rows and columns
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh, where a cut does not fit
---   example
---     nn.PixelUnshuffle(2)(mh.ones{1, 2, 6, 8}).shape    --> {1, 8, 3, 4}

layer("PixelUnshuffle", {"downscale_factor"}, {"downscale_factor"},
  function(self, x) return mh.pixel_unshuffle(x, self.downscale_factor) end)
--- mh.nn.ChannelShuffle(groups) -> Module
---   Mixes channels: channel c of group g becomes channel g of group c.
---   groups      integer     divides the number of channels
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose channels are cut
---   example
---     nn.ChannelShuffle(2)(mh.arange(4):reshape{1, 4, 1, 1}):flatten():tolist()    --> {0, 2, 1, 3}

layer("ChannelShuffle", {"groups"}, {"groups"}, function(self, x) return mh.channel_shuffle(x, self.groups) end)

--- mh.nn.UpsamplingNearest2d(size = nil, scale_factor = nil) -> Module
--- mh.nn.UpsamplingBilinear2d(size = nil, scale_factor = nil) -> Module
---   nn.Upsample with mode "nearest", or with mode "bilinear" and align_corners. The module takes x [batch, channels,
---   rows, columns].
---   size        integer|{integer}?   size of the result; this or scale_factor
---   scale_factor   number|{number}?   factor for both dims
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.UpsamplingNearest2d{scale_factor = 2}(mh.ones{1, 1, 2, 3}).shape    --> {1, 1, 4, 6}

layer("UpsamplingNearest2d", {optional "size", optional "scale_factor"}, {"size", "scale_factor"},
  function(self, x) return F.interpolate(x, {size = self.size, scale_factor = self.scale_factor}) end)
layer("UpsamplingBilinear2d", {optional "size", optional "scale_factor"}, {"size", "scale_factor"}, function(self, x)
  return F.interpolate(x, {size = self.size, scale_factor = self.scale_factor, mode = "bilinear", align_corners = true})
end)

return window
