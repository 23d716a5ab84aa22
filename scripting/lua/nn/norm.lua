-- SPDX-License-Identifier: Apache-2.0
-- Normalisation layers, with torch.nn's names, options, buffers and defaults.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local init = require "moonhalo.nn.init"
local layers = require "moonhalo.nn.layers"

local Module, fail, show = base.Module, mh.fail, base.Module.show
local optional, signature, read = arguments.optional, arguments.signature, arguments.read
local norm = {}

local function reset_weights(self)
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

--- Weight of ones and bias of zeros of `shape` where the options ask for them.
local function add_weights(self, shape, weight, bias, values)
  self.weight = weight and layers.new_parameter(self:class_name(), shape, values) or nil
  self.bias = bias and layers.new_parameter(self:class_name(), shape, values) or nil
  reset_weights(self)
end

-- ---- BatchNorm and InstanceNorm -----------------------------------------------------------------------------------

local function check_dims(name, x, low, high)
  local count = #x.shape
  if count < low or count > high then
    local wanted = low == high and tostring(low) or low .. " or " .. high
    fail(("%s: the input has %d dimensions, expected %s\n  have  shape {%s}"):format(name, count, wanted,
        table.concat(x.shape, ", ")))
  end
end

--- One value has no variance. It would become zero, and the running variance NaN. Sizes are those of the whole tensor,
--- so a rank with one row of a larger batch is fine.
local function check_count(name, x, count, of, remedy)
  if count ~= 1 then return end
  fail(("%s: expected more than 1 value per %s when training\n  have  an input {%s}\n  fix   %s"):format(name, of,
    table.concat(x.shape, ", "), remedy))
end

--- Counts the places of `x` in the dims after the channels.
local function positions(x)
  local count = 1
  for d = 3, #x.shape do count = count * x.shape[d] end
  return count
end

local Running = Module:extend("RunningNorm")

function Running:set(values)
  arguments.count(self:class_name(), "num_features", values.num_features, 1)
  self.num_features, self.eps, self.momentum = values.num_features, values.eps, values.momentum
  self.affine, self.track_running_stats = values.affine, values.track_running_stats
  add_weights(self, {values.num_features}, values.affine, values.affine, values)
  local tracked, like = values.track_running_stats, {dtype = values.dtype, device = values.device}
  self:register_buffer("running_mean", tracked and mh.zeros({values.num_features}, like) or nil)
  self:register_buffer("running_var", tracked and mh.ones({values.num_features}, like) or nil)
  self:register_buffer("num_batches_tracked", tracked and mh.zeros({}, {dtype = "int64", device = like.device}) or nil)
end

function Running:reset_running_stats()
  if not self.track_running_stats then return end
  self.running_mean:zero_()
  self.running_var:fill_(1)
  self.num_batches_tracked:zero_()
end

function Running:reset_parameters()
  self:reset_running_stats()
  reset_weights(self)
end

function Running:extra_repr()
  return ("%d, eps=%g, momentum=%s, affine=%s, track_running_stats=%s"):format(self.num_features, self.eps,
    show(self.momentum or nil), show(self.affine), show(self.track_running_stats))
end

--- mh.nn.BatchNorm1d(num_features, {eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true,
---     device = nil, dtype = nil}) -> Module
--- mh.nn.BatchNorm2d(num_features, {eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true,
---     device = nil, dtype = nil}) -> Module
--- mh.nn.BatchNorm3d(num_features, {eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true,
---     device = nil, dtype = nil}) -> Module
---   Normalises each channel over batch and space, as torch.nn.BatchNorm2d. The module takes x [batch, channels,
---   space...]. On cut tensors mean and variance are those of the global tensor.
---   num_features   integer   channels of the input
---   eps         number      added to the variance
---   momentum    number|false   part of the new statistics in the running ones; false for the plain mean over all
---     batches
---   affine      boolean     whether there are weight and bias
---   track_running_stats   boolean   whether there are running statistics, which eval() uses
---   device      string?     of parameters and buffers
---   dtype       string?     of parameters and buffers
---   returns     Module      parameters weight, bias [num_features]; buffers running_mean, running_var,
---     num_batches_tracked
---   collective  its calls while training: over the mesh of a cut input
---   errors      ValueError: one value for each channel while training
---   example
---     local norm = nn.BatchNorm2d(3)
---     ("%.3f"):format(norm(mh.randn{4, 3, 6, 6}):var():item())    --> 1.002

local function batch_norm(name, low, high)
  -- `momentum = false` is PyTorch's None: the running statistics are the plain mean over all batches.
  local spec = signature(name, {"num_features", {"eps", 1e-5}, {"momentum", 0.1}, {"affine", true},
    {"track_running_stats", true}, optional "device", optional "dtype"})
  local class = Running:extend(name)
  function class:init(...) self:set(read(spec, ...)) end
  function class:forward(x)
    check_dims(name, x, low, high)
    local momentum = self.momentum or 0
    local statistics_of_batch = self.training or not self.track_running_stats
    if statistics_of_batch then
      check_count(name, x, x.shape[1] * positions(x), "channel", "give a larger batch, or call eval() first")
    end
    if self.training and self.track_running_stats then
      self.num_batches_tracked:add_(1)
      if not self.momentum then momentum = 1 / self.num_batches_tracked:item() end
    end
    return mh.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, statistics_of_batch, momentum,
      self.eps, true)
  end
  norm[name] = class
end

--- mh.nn.InstanceNorm1d(num_features, {eps = 1e-5, momentum = 0.1, affine = false, track_running_stats = false, device
---     = nil, dtype = nil}) -> Module
--- mh.nn.InstanceNorm2d(num_features, {eps = 1e-5, momentum = 0.1, affine = false, track_running_stats = false, device
---     = nil, dtype = nil}) -> Module
--- mh.nn.InstanceNorm3d(num_features, {eps = 1e-5, momentum = 0.1, affine = false, track_running_stats = false, device
---     = nil, dtype = nil}) -> Module
---   Normalises each channel of each sample over space, as torch.nn.InstanceNorm2d. The module takes x [batch,
---   channels, space...] or [channels, space...].
---   num_features   integer   channels of the input
---   eps         number      added to the variance
---   momentum    number      part of the new statistics in the running ones
---   affine      boolean     whether there are weight and bias
---   track_running_stats   boolean   whether there are running statistics, which eval() uses
---   device      string?     of parameters and buffers
---   dtype       string?     of parameters and buffers
---   returns     Module      parameters weight, bias [num_features] where affine
---   collective  its calls: over the mesh of an input whose space is cut
---   errors      ValueError: one value for each channel of a sample while training
---   example
---     nn.InstanceNorm2d(3)(mh.randn{4, 3, 6, 6}).shape    --> {4, 3, 6, 6}

local function instance_norm(dims)
  local name = "InstanceNorm" .. dims .. "d"
  local spec = signature(name, {"num_features", {"eps", 1e-5}, {"momentum", 0.1}, {"affine", false},
    {"track_running_stats", false}, optional "device", optional "dtype"})
  local class = Running:extend(name)
  function class:init(...) self:set(read(spec, ...)) end
  function class:forward(x)
    check_dims(name, x, dims + 1, dims + 2)
    local alone = #x.shape == dims + 1
    if alone then x = x:unsqueeze(0) end
    local statistics_of_batch = self.training or not self.track_running_stats
    if statistics_of_batch then
      check_count(name, x, positions(x), "channel of a sample", "give a larger field")
    end
    local y = mh.instance_norm(x, self.weight, self.bias, self.running_mean, self.running_var, statistics_of_batch,
      self.momentum or 0, self.eps, true)
    return alone and y:squeeze(0) or y
  end
  norm[name] = class
end

--- mh.nn.SyncBatchNorm(num_features, {eps = 1e-5, momentum = 0.1, affine = true, track_running_stats = true,
---     device = nil, dtype = nil}) -> Module
---   BatchNorm of any number of dims of space, under PyTorch's name for statistics over all ranks. nn.BatchNorm1d to 3d
---   have these on cut tensors, too.
---   num_features   integer   channels of the input
---   eps         number      added to the variance
---   momentum    number|false   as of nn.BatchNorm2d
---   affine      boolean     whether there are weight and bias
---   track_running_stats   boolean   whether there are running statistics, which eval() uses
---   device      string?     of parameters and buffers
---   dtype       string?     of parameters and buffers
---   returns     Module      parameters and buffers of nn.BatchNorm2d
---   collective  its calls while training: over the mesh of a cut input
---   errors      ValueError: one value for each channel while training
---   example
---     nn.SyncBatchNorm(3)(mh.randn{4, 3, 6}).shape    --> {4, 3, 6}

batch_norm("BatchNorm1d", 2, 3)
batch_norm("BatchNorm2d", 4, 4)
batch_norm("BatchNorm3d", 5, 5)
batch_norm("SyncBatchNorm", 2, 5)
for dims = 1, 3 do instance_norm(dims) end

-- ---- GroupNorm, LayerNorm, RMSNorm --------------------------------------------------------------------------------

--- mh.nn.GroupNorm(num_groups, num_channels, {eps = 1e-5, affine = true, device = nil, dtype = nil}) -> Module
---   Normalises groups of channels of each sample, as torch.nn.GroupNorm. The module takes x [batch, channels,
---   space...].
---   num_groups   integer    divides num_channels
---   num_channels   integer   channels of the input
---   eps         number      added to the variance
---   affine      boolean     whether there are weight and bias
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters weight, bias [num_channels]
---   collective  its calls: over the mesh of an input whose channels or space are cut
---   errors      ValueError: channels that groups do not divide, or one value for each group
---   example
---     nn.GroupNorm(2, 4)(mh.randn{3, 4, 6}).shape    --> {3, 4, 6}

local kGroup = signature("GroupNorm",
  {"num_groups", "num_channels", {"eps", 1e-5}, {"affine", true}, optional "device", optional "dtype"})

norm.GroupNorm = Module:extend("GroupNorm")
function norm.GroupNorm:init(...)
  local values = read(kGroup, ...)
  for _, name in ipairs {"num_groups", "num_channels"} do arguments.count("GroupNorm", name, values[name], 1) end
  if values.num_channels % values.num_groups ~= 0 then
    fail(("GroupNorm: %d channels are not divisible by %d groups"):format(values.num_channels, values.num_groups))
  end
  self.num_groups, self.num_channels, self.eps = values.num_groups, values.num_channels, values.eps
  self.affine = values.affine
  add_weights(self, {values.num_channels}, values.affine, values.affine, values)
end
norm.GroupNorm.reset_parameters = reset_weights
function norm.GroupNorm:forward(x)
  if #x.shape >= 2 then
    check_count("GroupNorm", x, x.shape[1] * (x.shape[2] // self.num_groups) * positions(x), "group",
      "use fewer groups, or a larger field")
  end
  return mh.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
end
function norm.GroupNorm:extra_repr()
  return ("%d, %d, eps=%g, affine=%s"):format(self.num_groups, self.num_channels, self.eps, show(self.affine))
end

local function shape_list(op, shape)
  local list = type(shape) == "number" and {shape} or shape
  if type(list) ~= "table" or #list == 0 or getmetatable(list) then
    fail(("%s: normalized_shape is %s, expected the sizes of the last dims, as {8, 16}"):format(op,
        mh._describe(shape)))
  end
  for _, size in ipairs(list) do arguments.count(op, "a size of normalized_shape", size, 0) end
  return {table.unpack(list)}
end

--- mh.nn.LayerNorm(normalized_shape, {eps = 1e-5, elementwise_affine = true, bias = true, device = nil,
---     dtype = nil}) -> Module
---   Normalises over the last dims, as torch.nn.LayerNorm. The module takes x [..., normalized_shape...].
---   normalized_shape   integer|{integer}   sizes of the last dims
---   eps         number      added to the variance
---   elementwise_affine   boolean   whether there are weight and bias
---   bias        boolean     whether there is a bias beside the weight
---   device      string?     of the parameters
---   dtype       string?     of the parameters
---   returns     Module      parameters weight, bias of normalized_shape
---   collective  its calls: over the mesh of an input that is cut along one of these dims
---   errors      ValueError: sizes that are not integers
---   example
---     nn.LayerNorm(8)(mh.randn{3, 8}).shape    --> {3, 8}

local kLayer = signature("LayerNorm",
  {"normalized_shape", {"eps", 1e-5}, {"elementwise_affine", true}, {"bias", true}, optional "device",
    optional "dtype"})

norm.LayerNorm = Module:extend("LayerNorm")
function norm.LayerNorm:init(...)
  local values = read(kLayer, ...)
  self.normalized_shape, self.eps = shape_list("LayerNorm", values.normalized_shape), values.eps
  self.elementwise_affine = values.elementwise_affine
  add_weights(self, self.normalized_shape, values.elementwise_affine, values.elementwise_affine and values.bias, values)
end
norm.LayerNorm.reset_parameters = reset_weights
function norm.LayerNorm:forward(x) return mh.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps) end
function norm.LayerNorm:extra_repr()
  return ("%s, eps=%g, elementwise_affine=%s"):format(show(self.normalized_shape), self.eps,
      show(self.elementwise_affine))
end

--- mh.nn.RMSNorm(normalized_shape, {eps = nil, elementwise_affine = true, device = nil, dtype = nil}) -> Module
---   Divides by the root of the mean square over the last dims, as torch.nn.RMSNorm. The module takes x [...,
---   normalized_shape...].
---   normalized_shape   integer|{integer}   sizes of the last dims
---   eps         number?     added to the mean square; nil for the smallest number of the dtype
---   elementwise_affine   boolean   whether there is a weight
---   device      string?     of the parameter
---   dtype       string?     of the parameter
---   returns     Module      parameter weight of normalized_shape
---   collective  its calls: over the mesh of an input that is cut along one of these dims
---   example
---     nn.RMSNorm(4)(mh.ones{2, 4} * 5):tolist()[1]    --> {1.0, 1.0, 1.0, 1.0}

local kRms = signature("RMSNorm",
  {"normalized_shape", optional "eps", {"elementwise_affine", true}, optional "device", optional "dtype"})

norm.RMSNorm = Module:extend("RMSNorm")
function norm.RMSNorm:init(...)
  local values = read(kRms, ...)
  self.normalized_shape, self.eps = shape_list("RMSNorm", values.normalized_shape), values.eps
  self.elementwise_affine = values.elementwise_affine
  add_weights(self, self.normalized_shape, values.elementwise_affine, false, values)
end
norm.RMSNorm.reset_parameters = reset_weights
function norm.RMSNorm:forward(x) return mh.rms_norm(x, self.normalized_shape, self.weight, self.eps) end
function norm.RMSNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s"):format(show(self.normalized_shape), show(self.eps),
      show(self.elementwise_affine))
end

return norm
