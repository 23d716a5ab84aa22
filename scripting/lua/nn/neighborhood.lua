-- SPDX-License-Identifier: Apache-2.0
-- Self-attention within neighbourhoods, 1 to 3 dims: a projection to query, key and value,
-- moonhalo::neighborhood_attention, and a projection of the heads together. Tensors of shape [batch, dims...,
-- embed_dim].

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local layers = require "moonhalo.nn.layers"

local Module, fail = base.Module, mh.fail
local optional, signature, read, tuple = arguments.optional, arguments.signature, arguments.read, arguments.tuple
local show = Module.show
local neighborhood = {}

local function show_flags(value)
  if type(value) ~= "table" then return tostring(value) end
  local texts = {}
  for i, flag in ipairs(value) do texts[i] = tostring(flag) end
  return "(" .. table.concat(texts, ", ") .. ")"
end

--- A flag per dim, from one flag or a list of them.
local function flags(op, name, value, count)
  local list = {}
  for i = 1, count do
    if type(value) == "table" then list[i] = value[i] else list[i] = value end
    if type(list[i]) ~= "boolean" or (type(value) == "table" and #value ~= count) then
      fail(("%s: %s is %s, expected true, false or a list of %d"):format(op, name, show_flags(value), count))
    end
  end
  return list
end

--- mh.nn.NeighborhoodAttention1d(embed_dim, num_heads, window, {stride = 1, dilation = 1, is_causal = false,
---     bias = true, scale = nil, device = nil, dtype = nil}) -> Module
--- mh.nn.NeighborhoodAttention2d(embed_dim, num_heads, window, {stride = 1, dilation = 1, is_causal = false,
---     bias = true, scale = nil, device = nil, dtype = nil}) -> Module
--- mh.nn.NeighborhoodAttention3d(embed_dim, num_heads, window, {stride = 1, dilation = 1, is_causal = false,
---     bias = true, scale = nil, device = nil, dtype = nil}) -> Module
---   Self-attention of each point with the points of a window around it. The module takes x [batch, space...,
---   embed_dim]. Along cut dims each rank receives the rows that its windows need.
---   embed_dim   integer     size of the last dim
---   num_heads   integer     divides embed_dim
---   window      integer|{integer}   points along each dim
---   stride      integer|{integer}   neighbouring points that share one window
---   dilation    integer|{integer}   distance between the points of a window
---   is_causal   boolean|{boolean}   for each dim: only points before
---   bias        boolean     whether the projections have a bias
---   scale       number?     factor of the scores; nil for 1 / sqrt(embed_dim / num_heads)
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      modules qkv and proj
---   collective  its calls: over the mesh of an input whose space is cut
---   errors      ValueError: embed_dim that num_heads does not divide
---   example
---     nn.NeighborhoodAttention2d(8, 2, 3)(mh.randn{1, 6, 5, 8}).shape    --> {1, 6, 5, 8}

local function attention(dims)
  local name = "NeighborhoodAttention" .. dims .. "d"
  local spec = signature(name, {"embed_dim", "num_heads", "window", {"stride", 1}, {"dilation", 1},
    {"is_causal", false, mixed = true}, {"bias", true}, optional "scale", optional "device", optional "dtype"})
  local class = Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    if values.embed_dim % values.num_heads ~= 0 then
      fail(("%s: embed_dim %d is not divisible by num_heads %d"):format(name, values.embed_dim, values.num_heads))
    end
    self.embed_dim, self.num_heads, self.scale = values.embed_dim, values.num_heads, values.scale
    for _, key in ipairs {"window", "stride", "dilation"} do self[key] = tuple(name, key, values[key], dims) end
    self.is_causal = flags(name, "is_causal", values.is_causal, dims)
    local options = {bias = values.bias, device = values.device, dtype = values.dtype}
    self.qkv = layers.Linear(values.embed_dim, 3 * values.embed_dim, options)
    self.proj = layers.Linear(values.embed_dim, values.embed_dim, options)
  end
  function class:forward(x)
    local shape = x.shape
    if #shape ~= dims + 2 then
      fail(("%s: the input has %d dimensions, expected %d: batch, %d of space, embed_dim"):format(name, #shape,
          dims + 2, dims))
    end
    local heads = {table.unpack(shape, 1, dims + 1)}
    heads[#heads + 1], heads[#heads + 2], heads[#heads + 3] = 3, self.num_heads, self.embed_dim // self.num_heads
    local parts = self.qkv(x):reshape(heads)
    local output = mh.neighborhood_attention(parts:select(-3, 0), parts:select(-3, 1), parts:select(-3, 2), self.window,
      self.stride, self.dilation, self.is_causal, self.scale)
    return self.proj(output:flatten(-2))
  end
  function class:extra_repr()
    local text = ("embed_dim=%d, num_heads=%d, window=%s"):format(self.embed_dim, self.num_heads, show(self.window))
    for _, key in ipairs {"stride", "dilation"} do
      local plain = true
      for _, value in ipairs(self[key]) do plain = plain and value == 1 end
      if not plain then text = text .. ", " .. key .. "=" .. show(self[key]) end
    end
    for _, causal in ipairs(self.is_causal) do
      if causal then return text .. ", is_causal=" .. show_flags(self.is_causal) end
    end
    return text
  end
  neighborhood[name] = class
end

for dims = 1, 3 do attention(dims) end

return neighborhood
