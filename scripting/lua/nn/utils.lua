-- SPDX-License-Identifier: Apache-2.0
-- mh.nn.utils: functions of torch.nn.utils about parameters, gradients and modules.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local computed = require "moonhalo.nn.parametrize"
local ordered_map = require "moonhalo.internal.ordered_map"
local strict = require "moonhalo.internal.strict"
local F = require "moonhalo.functional"

local fail, optional = mh.fail, arguments.optional
local utils = {}

--- A list of tensors; one tensor is a list of it.
local function tensors_of(op, name, list)
  if mh.is_tensor(list) then return {list} end
  if type(list) ~= "table" or getmetatable(list) then
    fail(("%s: %s is %s, expected a list of tensors"):format(op, name, mh._describe(list)))
  end
  for i = 1, #list do arguments.tensor(op, ("%s[%d]"):format(name, i), list[i]) end
  return arguments.list(op, "a list of tensors", list)
end

-- ---- One vector ---------------------------------------------------------------------------------------------------

--- mh.nn.utils.parameters_to_vector(parameters) -> Tensor
---   All parameters in one vector, in the order of the list, each in row-major order.
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   returns     Tensor      [n]; cut if a parameter is
---   collective  over the meshes of cut parameters
---   errors      TypeError: an element is not a tensor
---   example
---     nn.utils.parameters_to_vector(nn.Linear(3, 2):parameters()).shape    --> {8}
function utils.parameters_to_vector(parameters)
  local op = "parameters_to_vector"
  local list, flat = tensors_of(op, "parameters", parameters), {}
  if #list == 0 then fail(op .. ": the list has no parameters") end
  for i, one in ipairs(list) do flat[i] = one:reshape{-1} end
  return mh.cat(flat, 0)
end

--- mh.nn.utils.vector_to_parameters(vector, parameters) -> nothing
---   Copies the parts of a vector into parameters: the inverse of parameters_to_vector.
---   vector      Tensor      [n], as many elements as all parameters have
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   returns     nothing
---   collective  over the meshes of cut tensors
---   errors      ValueError: another number of elements
---   example
---     local net = nn.Linear(1, 2)
---     nn.utils.vector_to_parameters(mh.tensor{1.0, 2.0, 3.0, 4.0}, net:parameters())
---     net.weight:tolist(), net.bias:tolist()    --> {{1.0}, {2.0}}  {3.0, 4.0}
function utils.vector_to_parameters(vector, parameters)
  local op = "vector_to_parameters"
  arguments.tensor(op, "vector", vector)
  local list, count, at = tensors_of(op, "parameters", parameters), 0, 0
  for _, one in ipairs(list) do count = count + one:numel() end
  if vector.ndim ~= 1 or vector:numel() ~= count then
    fail(("%s: the vector is %s, expected [%d], the elements of all parameters"):format(op, mh._describe(vector),
        count))
  end
  mh.no_grad(function()
    for _, one in ipairs(list) do
      local part = vector:narrow(0, at, one:numel()):reshape(one.shape)
      if part:is_shard_tensor() and not one:is_shard_tensor() then part = part:full_tensor() end
      one:copy_(part)
      at = at + one:numel()
    end
  end)
end

-- ---- Norms of gradients -------------------------------------------------------------------------------------------

local kTotal = arguments.signature("get_total_norm", {"tensors", {"norm_type", 2.0}, {"error_if_nonfinite", false}})

--- mh.nn.utils.get_total_norm(tensors, {norm_type = 2.0, error_if_nonfinite = false}) -> Tensor
---   The norm of all elements of all tensors together.
---   tensors     Tensor|{Tensor}   gradients, or others, of any meshes
---   norm_type   number      2 for the Euclidean norm, math.huge for the largest element
---   error_if_nonfinite   boolean   whether a norm that is not finite is an error
---   returns     Tensor      plain, one element, the same on all ranks
---   collective  over the meshes of cut tensors
---   errors      ValueError: the norm is not finite, with error_if_nonfinite
---   example
---     nn.utils.get_total_norm{mh.tensor{3.0}, mh.tensor{4.0}}:item()    --> 5.0
function utils.get_total_norm(...)
  local op = "get_total_norm"
  local v = arguments.read(kTotal, ...)
  local list, norms = tensors_of(op, "tensors", v.tensors), {}
  local p = arguments.number(op, "norm_type", v.norm_type) + 0.0
  arguments.flag(op, "error_if_nonfinite", v.error_if_nonfinite)
  for i, one in ipairs(list) do
    if not (one:is_floating_point() or one:is_complex()) then
      fail(("%s: tensors[%d] is %s, expected floating-point numbers"):format(op, i, mh._describe(one)))
    end
    norms[i] = mh.linalg_vector_norm(one, p):full_tensor()
  end
  local total = #norms == 0 and mh.tensor(0.0) or mh.linalg_vector_norm(mh.stack(norms, 0), p)
  if v.error_if_nonfinite and not total:isfinite():item() then
    fail(("%s: the norm is %s\n  fix   error_if_nonfinite = false goes on with it"):format(op, total:item()))
  end
  return total
end

local kClip = arguments.signature("clip_grads_with_norm_", {"parameters", "max_norm", "total_norm"})

--- mh.nn.utils.clip_grads_with_norm_(parameters, max_norm, total_norm) -> nothing
---   Scales all gradients in place by max_norm / (total_norm + 1e-6), if that is below 1.
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   max_norm    number      the largest norm
---   total_norm  Tensor|number   their norm now, as of get_total_norm
---   returns     nothing
---   collective  no
---   errors      TypeError: no number
---   example
---     local w = nn.Parameter(mh.zeros{1})
---     w.grad = mh.tensor{8.0}
---     nn.utils.clip_grads_with_norm_({w}, 2, 4 - 1e-6)
---     w.grad:item()    --> 4.0
function utils.clip_grads_with_norm_(...)
  local op = "clip_grads_with_norm_"
  local v = arguments.read(kClip, ...)
  local list = tensors_of(op, "parameters", v.parameters)
  arguments.number(op, "max_norm", v.max_norm)
  local total = v.total_norm
  if mh.is_tensor(total) and total:numel() == 1 then total = total:item() end
  if total == total then arguments.number(op, "total_norm", total) end  -- NaN is the norm of gradients with NaN
  local factor = v.max_norm / (total + 1e-6)
  if factor >= 1 then return end
  mh.no_grad(function()
    for _, one in ipairs(list) do
      if one.grad then one.grad:mul_(factor) end
    end
  end)
end

--- mh.nn.utils.clip_grad_norm_(parameters, max_norm, {norm_type = 2.0, error_if_nonfinite = false}) -> Tensor
--- mh.nn.utils.clip_grad_norm(parameters, max_norm, {norm_type = 2.0, error_if_nonfinite = false}) -> Tensor
---   The same as mh.clip_grad_norm.
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   max_norm    number      the largest norm
---   norm_type   number      2 for the Euclidean norm, math.huge for the largest element
---   error_if_nonfinite   boolean   whether a norm that is not finite is an error
---   returns     Tensor      the norm before, one element, the same on all ranks
---   collective  over the meshes of the parameters
---   example
---     local w = nn.Parameter(mh.zeros{4})
---     w.grad = mh.ones{4}
---     nn.utils.clip_grad_norm_({w}, 10):item()    --> 2.0
utils.clip_grad_norm_, utils.clip_grad_norm = F.clip_grad_norm, F.clip_grad_norm

--- mh.nn.utils.clip_grad_value_(parameters, clip_value) -> nothing
---   The same as mh.clip_grad_value.
---   parameters   Tensor|{Tensor}   such as net:parameters()
---   clip_value   number     the largest element
---   returns     nothing
---   collective  no
---   errors      ValueError: a complex gradient
---   example
---     local w = nn.Parameter(mh.zeros{2})
---     w.grad = mh.tensor{5.0, -0.25}
---     nn.utils.clip_grad_value_({w}, 1)
---     w.grad:tolist()    --> {1.0, -0.25}
utils.clip_grad_value_ = F.clip_grad_value

-- ---- Layers without their norm ------------------------------------------------------------------------------------

--- A module of the same class with the same fields and tensors, whose registries are its own.
local function copy_of(module)
  local copy = setmetatable({}, getmetatable(module))
  base.adopt(copy)
  for key, value in pairs(module) do rawset(copy, key, value) end
  for _, registry in ipairs {"_parameters", "_buffers", "_modules"} do
    rawset(copy, registry, ordered_map())
    for name, value in rawget(module, registry) do rawget(copy, registry)[name] = value end
  end
  for _, list in ipairs {"_volatile", "_known", "_pre_hooks", "_hooks"} do
    local own = {}
    for key, value in pairs(rawget(module, list)) do own[key] = value end
    rawset(copy, list, own)
  end
  return copy
end

--- Weight and bias that do in one step what a layer and a batch norm after it do. `at`: the dim of the channels of the
--- weight.
local function fused(v, at)
  local function of(x, default) return x == nil and default(v.bn_rm) or x end
  local scale = of(v.bn_w, mh.ones_like) * (v.bn_rv + v.bn_eps):rsqrt()
  local shape = {}
  for d = 1, v.weight.ndim do shape[d] = d == at + 1 and -1 or 1 end
  local weight = v.weight * scale:reshape(shape)
  local bias = (of(v.bias, mh.zeros_like) - v.bn_rm) * scale + of(v.bn_b, mh.zeros_like)
  return base.Parameter(weight:to(v.weight.dtype), v.weight.requires_grad),
    base.Parameter(bias:to(v.weight.dtype), v.bias == nil or v.bias.requires_grad)
end

local function read_weights(op, signature, ...)
  local v = arguments.read(signature, ...)
  for i, name in ipairs(signature.names) do
    if name == "bn_eps" then
      arguments.number(op, name, v[name])
    elseif name == "transpose" then
      arguments.flag(op, name, v[name])
    elseif v[name] ~= nil or i == 1 then
      arguments.tensor(op, name, v[name])
    end
  end
  v.weight, v.bias = v.conv_w or v.linear_w, v.conv_b or v.linear_b
  if v.weight.ndim < 2 then fail(("%s: the weight is %s, expected 2 dims"):format(op, mh._describe(v.weight))) end
  return v
end

local kConvWeights = arguments.signature("fuse_conv_bn_weights", {"conv_w", optional "conv_b", "bn_rm", "bn_rv",
  "bn_eps", optional "bn_w", optional "bn_b", {"transpose", false}})
local kLinearWeights = arguments.signature("fuse_linear_bn_weights", {"linear_w", optional "linear_b", "bn_rm", "bn_rv",
  "bn_eps", optional "bn_w", optional "bn_b"})

--- mh.nn.utils.fuse_conv_bn_weights(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, transpose = false) -> Tensor
--- mh.nn.utils.fuse_linear_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b) -> Tensor
---   The weight of one layer that does what a convolution, or a linear layer, and a batch norm after it do in
---   evaluation; a second result is its bias.
---   conv_w      Tensor      the weight of the convolution
---   conv_b      Tensor?     its bias
---   linear_w    Tensor      the weight of the linear layer
---   linear_b    Tensor?     its bias
---   bn_rm       Tensor      running mean of the batch norm
---   bn_rv       Tensor      running variance
---   bn_eps      number      added to the variance
---   bn_w        Tensor?     weight of the batch norm
---   bn_b        Tensor?     bias of the batch norm
---   transpose   boolean     whether it is a transposed convolution
---   returns     Tensor      parameters: the weight, then the bias
---   collective  over the mesh of cut weights
---   errors      TypeError: one of them is not a tensor
---   example
---     local one = mh.ones{1}
---     local w, b = nn.utils.fuse_linear_bn_weights(mh.ones{1, 1} * 3, nil, one, one * 4, 0.0, nil, nil)
---     w:item(), b:item()    --> 1.5  -0.5
function utils.fuse_conv_bn_weights(...)
  local v = read_weights("fuse_conv_bn_weights", kConvWeights, ...)
  return fused(v, v.transpose and 1 or 0)
end
function utils.fuse_linear_bn_weights(...)
  return fused(read_weights("fuse_linear_bn_weights", kLinearWeights, ...), 0)
end

local function fuse_modules(op, layer, bn, at)
  arguments.module(op, layer)
  arguments.module(op, bn)
  if layer.training or bn.training then fail(op .. ": the modules are training\n  fix   call eval() first") end
  if not layer:has "weight" or not bn:has "running_mean" or not bn:has "running_var" then
    fail(("%s: expected a layer with a weight and a batch norm with running statistics, got %s and %s"):format(op,
        layer:class_name(), bn:class_name()))
  end
  if computed.parametrize.is_parametrized(layer) then
    fail(op .. ": the layer is parametrized\n  fix   nn.utils.parametrize.remove_parametrizations(layer, \"weight\")")
  end
  local copy = copy_of(layer)
  copy.weight, copy.bias = fused({weight = layer.weight, bias = layer.bias, bn_rm = bn.running_mean,
    bn_rv = bn.running_var, bn_eps = bn.eps, bn_w = bn.weight, bn_b = bn.bias}, at)
  return copy
end

--- mh.nn.utils.fuse_conv_bn_eval(conv, bn, transpose = false) -> Module
--- mh.nn.utils.fuse_linear_bn_eval(linear, bn) -> Module
---   A convolution, or linear layer, that does what `conv` and the batch norm `bn` after it do in evaluation.
---   conv, linear   Module   the layer, after eval()
---   bn          Module      the batch norm, after eval()
---   transpose   boolean     whether it is a transposed convolution
---   returns     Module      a new layer of the same class
---   collective  over the mesh of cut weights
---   errors      ValueError: a module is training
---   example
---     local conv, bn = nn.Conv2d(2, 3, 1):eval(), nn.BatchNorm2d(3):eval()
---     local x = mh.ones{1, 2, 2, 2}
---     mh.allclose(nn.utils.fuse_conv_bn_eval(conv, bn)(x), bn(conv(x)), 1e-4, 1e-5)    --> true
function utils.fuse_conv_bn_eval(conv, bn, transpose)
  if transpose ~= nil then arguments.flag("fuse_conv_bn_eval", "transpose", transpose) end
  return fuse_modules("fuse_conv_bn_eval", conv, bn, transpose and 1 or 0)
end
function utils.fuse_linear_bn_eval(linear, bn) return fuse_modules("fuse_linear_bn_eval", linear, bn, 0) end

-- ---- Computed parameters ------------------------------------------------------------------------------------------

utils.spectral_norm, utils.weight_norm = computed.parametrizations.spectral_norm, computed.parametrizations.weight_norm

--- mh.nn.utils.remove_spectral_norm(module, name = "weight") -> Module
--- mh.nn.utils.remove_weight_norm(module, name = "weight") -> Module
---   Makes the parameter an ordinary one again, with its present value.
---   module      Module      of spectral_norm or weight_norm
---   name        string      of the parameter
---   returns     Module      `module` itself
---   collective  over the mesh of a cut weight
---   errors      ValueError: the parameter is not parametrized
---   example
---     local net = nn.utils.remove_weight_norm(nn.utils.weight_norm(nn.Linear(2, 2)))
---     net.weight.is_leaf    --> true
for _, op in ipairs {"remove_spectral_norm", "remove_weight_norm"} do
  utils[op] = function(module, name) return computed.remove(op, module, name == nil and "weight" or name, true) end
end

for _, part in ipairs {utils, computed.parametrize, computed.parametrizations} do
  for name, fn in pairs(part) do part[name] = mh._framed(fn) end
end
utils.parametrize = strict.table("nn.utils.parametrize", computed.parametrize)
utils.parametrizations = strict.table("nn.utils.parametrizations", computed.parametrizations)

return strict.table("nn.utils", utils)
