-- SPDX-License-Identifier: Apache-2.0
-- Convolutions and their transposes in 1 to 3 dimensions, with torch.nn's names, options and initial values.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local layers = require "moonhalo.nn.layers"

local Module, fail = base.Module, mh.fail
local optional, signature, read, tuple = arguments.optional, arguments.signature, arguments.read, arguments.tuple
local show = Module.show
local conv = {}

local function all_are(list, value)
  for _, one in ipairs(list) do
    if one ~= value then return false end
  end
  return true
end

local function check_channels(op, values)
  for _, name in ipairs {"in_channels", "out_channels"} do
    if math.type(values[name]) ~= "integer" or values[name] <= 0 then
      fail(op .. ": " .. name .. " is " .. mh._describe(values[name]) .. ", expected a positive integer")
    end
    if math.type(values.groups) ~= "integer" or values.groups <= 0 or values[name] % values.groups ~= 0 then
      fail(("%s: %s %d is not divisible by groups %s"):format(op, name, values[name], tostring(values.groups)))
    end
  end
end

local function set_common(self, op, values, dims)
  check_channels(op, values)
  self.in_channels, self.out_channels, self.groups = values.in_channels, values.out_channels, values.groups
  for _, name in ipairs {"kernel_size", "stride", "dilation"} do
    self[name] = tuple(op, name, values[name], dims)
  end
  self.padding = values.padding
  if type(values.padding) ~= "string" then self.padding = tuple(op, "padding", values.padding, dims) end
  self.padding_mode = arguments.choice(op, "padding_mode", values.padding_mode,
      {"zeros", "reflect", "replicate", "circular"})
end

--- The argument of mh.pad for `padding` (per dimension, or "same") before a convolution: last dimension first.
local function explicit_padding(self)
  local pads = {}
  for d = #self.kernel_size, 1, -1 do
    local low, high = 0, 0
    if self.padding == "same" then
      local total = self.dilation[d] * (self.kernel_size[d] - 1)
      low, high = total // 2, total - total // 2
    elseif self.padding ~= "valid" then
      low, high = self.padding[d], self.padding[d]
    end
    pads[#pads + 1], pads[#pads + 2] = low, high
  end
  return pads
end

local function describe(self, defaults)
  local parts = {self.in_channels, self.out_channels, "kernel_size=" .. show(self.kernel_size), "stride="
      .. show(self.stride)}
  if type(self.padding) == "string" or not all_are(self.padding, 0) then
    parts[#parts + 1] = "padding=" .. show(self.padding)
  end
  if not all_are(self.dilation, 1) then parts[#parts + 1] = "dilation=" .. show(self.dilation) end
  if defaults.output_padding and not all_are(self.output_padding, 0) then
    parts[#parts + 1] = "output_padding=" .. show(self.output_padding)
  end
  if self.groups ~= 1 then parts[#parts + 1] = "groups=" .. self.groups end
  if not self.bias then parts[#parts + 1] = "bias=False" end
  if self.padding_mode ~= "zeros" then parts[#parts + 1] = "padding_mode=" .. self.padding_mode end
  return table.concat(parts, ", ")
end

--- mh.nn.Conv1d(in_channels, out_channels, kernel_size, {stride = 1, padding = 0, dilation = 1, groups = 1,
---     bias = true, padding_mode = "zeros", device = nil, dtype = nil}) -> Module
--- mh.nn.Conv2d(in_channels, out_channels, kernel_size, {stride = 1, padding = 0, dilation = 1, groups = 1,
---     bias = true, padding_mode = "zeros", device = nil, dtype = nil}) -> Module
--- mh.nn.Conv3d(in_channels, out_channels, kernel_size, {stride = 1, padding = 0, dilation = 1, groups = 1,
---     bias = true, padding_mode = "zeros", device = nil, dtype = nil}) -> Module
---   A convolution over 1, 2 or 3 dims of space, as torch.nn.Conv2d. The module takes x [batch, in_channels, space...]
---   or [in_channels, space...]. Along cut dims of space each rank receives the border rows that its windows need.
---   in_channels   integer   channels of the input
---   out_channels   integer   channels of the result
---   kernel_size   integer|{integer}   size of the window, one number or one for each dim
---   stride      integer|{integer}   distance between windows
---   padding     integer|{integer}|"same"|"valid"   rows added on both sides of each dim; "same" keeps the size and
---     needs stride 1
---   dilation    integer|{integer}   distance between the elements of a window
---   groups      integer     groups of channels that do not mix; divides both numbers of channels
---   bias        boolean     adds a number for each channel of the result
---   padding_mode   "zeros"|"reflect"|"replicate"|"circular"   what the added rows contain
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters weight [out_channels, in_channels / groups, kernel...] and bias [out_channels]
---   collective  its calls: over the mesh of a cut input
---   errors      ValueError: channels that groups does not divide; a call with another number of channels
---   example
---     local conv = nn.Conv2d(3, 8, 3, {padding = 1})
---     local x = mh.distribute_tensor(mh.ones{1, 3, 12, 8}, mesh, {mh.Shard(2)})
---     conv(x).shape, conv.weight.shape    --> {1, 8, 12, 8}  {8, 3, 3, 3}

local function convolution(dims)
  local name, op = "Conv" .. dims .. "d", mh["conv" .. dims .. "d"]
  local spec = signature(name, {"in_channels", "out_channels", "kernel_size", {"stride", 1}, {"padding", 0},
    {"dilation", 1}, {"groups", 1}, {"bias", true}, {"padding_mode", "zeros"}, optional "device", optional "dtype"})
  local class = Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    set_common(self, name, values, dims)
    if type(self.padding) == "string" then
      arguments.choice(name, "padding", self.padding, {"same", "valid"})
      if self.padding == "same" and not all_are(self.stride, 1) then
        fail(name .. ": padding 'same' needs a stride of 1, have " .. show(self.stride))
      end
    end
    self.weight = layers.new_parameter(self:class_name(), {self.out_channels, self.in_channels // self.groups,
        table.unpack(self.kernel_size)}, values)
    self.bias = values.bias and layers.new_parameter(self:class_name(), {self.out_channels}, values) or nil
    self:reset_parameters()
  end
  function class:reset_parameters() layers.reset_affine(self.weight, self.bias) end
  function class:forward(x)
    local padding = self.padding
    if self.padding_mode ~= "zeros" then
      x, padding = mh.pad(x, explicit_padding(self), self.padding_mode), 0
    end
    return op(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)
  end
  function class:extra_repr() return describe(self, {}) end
  conv[name] = class
end

--- The output_padding that gives `size` (spatial, or the whole shape), within one stride of the smallest result.
local function output_padding_for(self, name, x, size, dims)
  if #size == dims + 2 then size = {table.unpack(size, 3)} end
  if #size ~= dims then
    fail(("%s: output_size has %d numbers, expected %d or %d"):format(name, #size, dims, dims + 2))
  end
  local shape, extra = x.shape, {}
  for d = 1, dims do
    local smallest = (shape[#shape - dims + d] - 1) * self.stride[d] - 2 * self.padding[d]
      + self.dilation[d] * (self.kernel_size[d] - 1) + 1
    extra[d] = size[d] - smallest
    if extra[d] < 0 or extra[d] >= math.max(self.stride[d], self.dilation[d]) then
      fail(("%s: output_size %d along dimension %d is not reachable, the range is %d to %d"):format(name, size[d],
        d - 1, smallest, smallest + self.stride[d] - 1))
    end
  end
  return extra
end

--- mh.nn.ConvTranspose1d(in_channels, out_channels, kernel_size, {stride = 1, padding = 0, output_padding = 0,
---     groups = 1, bias = true, dilation = 1, padding_mode = "zeros", device = nil, dtype = nil}) -> Module
--- mh.nn.ConvTranspose2d(in_channels, out_channels, kernel_size, {stride = 1, padding = 0, output_padding = 0,
---     groups = 1, bias = true, dilation = 1, padding_mode = "zeros", device = nil, dtype = nil}) -> Module
--- mh.nn.ConvTranspose3d(in_channels, out_channels, kernel_size, {stride = 1, padding = 0, output_padding = 0,
---     groups = 1, bias = true, dilation = 1, padding_mode = "zeros", device = nil, dtype = nil}) -> Module
---   The transpose of a convolution, which enlarges space by `stride`, as torch.nn.ConvTranspose2d. The module takes x
---   [batch, in_channels, space...] and, as a second argument, the required size of the result.
---   in_channels   integer   channels of the input
---   out_channels   integer   channels of the result
---   kernel_size   integer|{integer}   size of the window, one number or one for each dim
---   stride      integer|{integer}   distance between windows in the result
---   padding     integer|{integer}   rows removed on both sides of each dim of the result
---   output_padding   integer|{integer}   rows added at the end of each dim of the result
---   groups      integer     groups of channels that do not mix; divides both numbers of channels
---   bias        boolean     adds a number for each channel of the result
---   dilation    integer|{integer}   distance between the elements of a window
---   padding_mode   "zeros"   the only one
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters weight [in_channels, out_channels / groups, kernel...] and bias [out_channels]
---   collective  its calls: over the mesh of a cut input
---   errors      ValueError: channels that groups does not divide; a size that cannot be reached
---   example
---     nn.ConvTranspose2d(4, 2, 2, {stride = 2})(mh.ones{1, 4, 3, 5}).shape    --> {1, 2, 6, 10}

local function transposed(dims)
  local name, op = "ConvTranspose" .. dims .. "d", mh["conv_transpose" .. dims .. "d"]
  local spec = signature(name, {"in_channels", "out_channels", "kernel_size", {"stride", 1}, {"padding", 0},
    {"output_padding", 0}, {"groups", 1}, {"bias", true}, {"dilation", 1}, {"padding_mode", "zeros"}, optional "device",
    optional "dtype"})
  local class = Module:extend(name)
  function class:init(...)
    local values = read(spec, ...)
    if type(values.padding) == "string" then
      fail(name .. ": padding is a number or a list, got '" .. values.padding .. "'")
    end
    if values.padding_mode ~= "zeros" then
      fail(name .. ": only padding_mode 'zeros' exists, got '" .. tostring(values.padding_mode) .. "'")
    end
    set_common(self, name, values, dims)
    self.output_padding = tuple(name, "output_padding", values.output_padding, dims)
    self.weight = layers.new_parameter(self:class_name(), {self.in_channels, self.out_channels // self.groups,
        table.unpack(self.kernel_size)}, values)
    self.bias = values.bias and layers.new_parameter(self:class_name(), {self.out_channels}, values) or nil
    self:reset_parameters()
  end
  function class:reset_parameters() layers.reset_affine(self.weight, self.bias) end
  --- `output_size` picks among the sizes that a stride above 1 leaves open.
  function class:forward(x, output_size)
    local extra = output_size and output_padding_for(self, name, x, output_size, dims) or self.output_padding
    return op(x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)
  end
  function class:extra_repr() return describe(self, {output_padding = true}) end
  conv[name] = class
end

for dims = 1, 3 do
  convolution(dims)
  transposed(dims)
end

return conv
