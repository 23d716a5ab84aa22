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

--- A class whose fields `entries` name; where no stride is given, windows lie side by side.
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
