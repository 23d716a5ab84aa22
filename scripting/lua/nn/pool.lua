-- SPDX-License-Identifier: Apache-2.0
-- Pooling and padding layers in 1 to 3 dimensions.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"

local Module, show = base.Module, base.Module.show
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local pool = {}

--- "kernel_size=2, ..." of the fields in `names`.
local function repr_of(names)
  return function(self)
    local parts = {}
    for i, name in ipairs(names) do parts[i] = name .. "=" .. show(self[name]) end
    return table.concat(parts, ", ")
  end
end

--- A class whose fields `entries` name; where no stride is given, windows are side by side.
local function pool_class(name, entries)
  local spec = signature(name, entries)
  local class = Module:extend(name)
  function class:init(...)
    self:_keep(spec, read(spec, ...))
    self.stride = self.stride or self.kernel_size
  end
  pool[name] = class
  return class
end

--- mh.nn.MaxPool1d(kernel_size, {stride = nil, padding = 0, dilation = 1, return_indices = false,
---     ceil_mode = false}) -> Module
--- mh.nn.MaxPool2d(kernel_size, {stride = nil, padding = 0, dilation = 1, return_indices = false,
---     ceil_mode = false}) -> Module
--- mh.nn.MaxPool3d(kernel_size, {stride = nil, padding = 0, dilation = 1, return_indices = false,
---     ceil_mode = false}) -> Module
---   The largest value of each window, as torch.nn.MaxPool2d. The module takes x [batch, channels, space...].
---   kernel_size   integer|{integer}   size of the window, one number or one for each dim
---   stride      integer|{integer}?   distance between windows; nil for kernel_size
---   padding     integer|{integer}   rows added on both sides of each dim, at most half of the window
---   dilation    integer|{integer}   distance between the elements of a window
---   return_indices   boolean   a second result says where in space the values were, int64
---   ceil_mode   boolean     also counts a window that is not whole at the end
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.MaxPool2d(2)(mh.ones{1, 3, 8, 6}).shape    --> {1, 3, 4, 3}

local function max_pool(dims)
  local name, op = "MaxPool" .. dims .. "d", mh["max_pool" .. dims .. "d"]
  local with_indices = mh["max_pool" .. dims .. "d_with_indices"]
  local class = pool_class(name, {"kernel_size", optional "stride", {"padding", 0}, {"dilation", 1},
    {"return_indices", false}, {"ceil_mode", false}})
  --- The largest values, and with return_indices where in space they stood.
  function class:forward(x)
    local pool_of = self.return_indices and with_indices or op
    return pool_of(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
  end
  class.extra_repr = repr_of {"kernel_size", "stride", "padding", "dilation", "ceil_mode"}
end

--- mh.nn.AvgPool1d(kernel_size, {stride = nil, padding = 0, ceil_mode = false, count_include_pad = true}) -> Module
---   The mean of each window, as torch.nn.AvgPool1d. The module takes x [batch, channels, length].
---   kernel_size   integer   size of the window
---   stride      integer?    distance between windows; nil for kernel_size
---   padding     integer     zeros added on both sides, at most half of the window
---   ceil_mode   boolean     also counts a window that is not whole at the end
---   count_include_pad   boolean   whether added zeros count in the mean
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose length is cut
---   example
---     nn.AvgPool1d(2)(mh.ones{1, 3, 8}).shape    --> {1, 3, 4}

--- mh.nn.AvgPool2d(kernel_size, {stride = nil, padding = 0, ceil_mode = false, count_include_pad = true,
---     divisor_override = nil}) -> Module
--- mh.nn.AvgPool3d(kernel_size, {stride = nil, padding = 0, ceil_mode = false, count_include_pad = true,
---     divisor_override = nil}) -> Module
---   The mean of each window, as torch.nn.AvgPool2d. The module takes x [batch, channels, space...].
---   kernel_size   integer|{integer}   size of the window, one number or one for each dim
---   stride      integer|{integer}?   distance between windows; nil for kernel_size
---   padding     integer|{integer}   zeros added on both sides of each dim, at most half of the window
---   ceil_mode   boolean     also counts a window that is not whole at the end
---   count_include_pad   boolean   whether added zeros count in the mean
---   divisor_override   integer?   divides the sum by this number instead
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.AvgPool2d(2)(mh.ones{1, 3, 8, 6}):mean():item()    --> 1.0

local function avg_pool(dims)
  local name, op = "AvgPool" .. dims .. "d", mh["avg_pool" .. dims .. "d"]
  local entries = {"kernel_size", optional "stride", {"padding", 0}, {"ceil_mode", false}, {"count_include_pad", true}}
  if dims > 1 then entries[#entries + 1] = optional "divisor_override" end
  local class = pool_class(name, entries)
  function class:forward(x)
    if dims == 1 then
      return op(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
    end
    return op(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad,
        self.divisor_override)
  end
  class.extra_repr = repr_of {"kernel_size", "stride", "padding"}
end

--- mh.nn.AdaptiveAvgPool1d(output_size) -> Module
--- mh.nn.AdaptiveAvgPool2d(output_size) -> Module
--- mh.nn.AdaptiveAvgPool3d(output_size) -> Module
---   The mean of windows that divide space into output_size parts, as torch.nn.AdaptiveAvgPool2d.
---   output_size   integer|{integer}   size of the result, one number or one for each dim
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.AdaptiveAvgPool2d(1)(mh.ones{2, 3, 8, 6}).shape    --> {2, 3, 1, 1}

--- mh.nn.AdaptiveMaxPool1d(output_size, return_indices = false) -> Module
--- mh.nn.AdaptiveMaxPool2d(output_size, return_indices = false) -> Module
--- mh.nn.AdaptiveMaxPool3d(output_size, return_indices = false) -> Module
---   The largest value of windows that divide space into output_size parts, as torch.nn.AdaptiveMaxPool2d.
---   output_size   integer|{integer}   size of the result, one number or one for each dim
---   return_indices   boolean   a second result says where in space the values were, int64
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.AdaptiveMaxPool1d(2)(mh.arange(6):float():reshape{1, 1, 6}):tolist()    --> {{{2.0, 5.0}}}

local function adaptive(kind, dims)
  local name, op = "Adaptive" .. kind .. "Pool" .. dims .. "d",
      mh["adaptive_" .. kind:lower() .. "_pool" .. dims .. "d"]
  local spec = signature(name, kind == "Max" and {"output_size", {"return_indices", false}} or {"output_size"})
  local class = Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    self.output_size, self.return_indices = arguments.tuple(name, "output_size", values.output_size, dims),
        values.return_indices
  end
  function class:forward(x)
    if self.return_indices then return op(x, self.output_size) end
    return (op(x, self.output_size))
  end
  class.extra_repr = repr_of {"output_size"}
  pool[name] = class
end

--- mh.nn.ZeroPad1d(padding) -> Module
--- mh.nn.ZeroPad2d(padding) -> Module
--- mh.nn.ZeroPad3d(padding) -> Module
--- mh.nn.ReflectionPad1d(padding) -> Module
--- mh.nn.ReflectionPad2d(padding) -> Module
--- mh.nn.ReflectionPad3d(padding) -> Module
--- mh.nn.ReplicationPad1d(padding) -> Module
--- mh.nn.ReplicationPad2d(padding) -> Module
--- mh.nn.ReplicationPad3d(padding) -> Module
--- mh.nn.CircularPad1d(padding) -> Module
--- mh.nn.CircularPad2d(padding) -> Module
--- mh.nn.CircularPad3d(padding) -> Module
---   Adds rows around space: zeros, the reflected field, its border values, or the field from its other end.
---   padding     integer|{integer}   rows on all sides, or {left, right, top, bottom, front, back}: the last dim first
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.CircularPad1d(1)(mh.arange(3):reshape{1, 1, 3}):tolist()    --> {{{2, 0, 1, 2, 0}}}

--- mh.nn.ConstantPad1d(padding, value) -> Module
--- mh.nn.ConstantPad2d(padding, value) -> Module
--- mh.nn.ConstantPad3d(padding, value) -> Module
---   Adds rows of one value around space.
---   padding     integer|{integer}   rows on all sides, or {left, right, top, bottom, front, back}: the last dim first
---   value       number      what the added rows contain
---   returns     Module      a module without parameters
---   collective  its calls: over the mesh of an input whose space is cut
---   example
---     nn.ConstantPad1d({1, 0}, 7)(mh.arange(3):reshape{1, 1, 3}):tolist()    --> {{{7, 0, 1, 2}}}

--- nn.ReflectionPad2d and its like: `padding` is one number, or {left, right, top, bottom, front, back}.
local function pad(prefix, mode, dims)
  local name = prefix .. "Pad" .. dims .. "d"
  local entries = {"padding"}
  if mode == "constant" and prefix == "Constant" then entries[2] = "value" end
  local spec = signature(name, entries)
  local class = Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    self.padding, self.value = arguments.tuple(name, "padding", values.padding, 2 * dims), values.value
  end
  function class:forward(x)
    if mode == "constant" then return mh.pad(x, self.padding, mode, self.value or 0) end
    return mh.pad(x, self.padding, mode)
  end
  function class:extra_repr()
    return self.value and ("padding=%s, value=%s"):format(show(self.padding), self.value) or show(self.padding)
  end
  pool[name] = class
end

for dims = 1, 3 do
  max_pool(dims)
  avg_pool(dims)
  adaptive("Avg", dims)
  adaptive("Max", dims)
  pad("Zero", "constant", dims)
  pad("Constant", "constant", dims)
  pad("Reflection", "reflect", dims)
  pad("Replication", "replicate", dims)
  pad("Circular", "circular", dims)
end

return pool
