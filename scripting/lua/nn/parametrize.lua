-- SPDX-License-Identifier: Apache-2.0
-- Parameters that are computed from others: mh.nn.utils.parametrize, and weight_norm and spectral_norm on it. Names in
-- state dicts are PyTorch's: parametrizations.weight.original, parametrizations.weight.0._u.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local containers = require "moonhalo.nn.containers"

local fail = mh.fail
local parametrize, parametrizations = {}, {}

--- The functions that give a parameter from its originals, one after another.
local List = containers.ModuleList:extend("ParametrizationList")

function List:originals()
  local found = {}
  for _, registry in ipairs {"_parameters", "_buffers"} do
    for _, tensor in rawget(self, registry) do found[#found + 1] = tensor end
  end
  return found
end

function List:forward()
  local value = self[0](table.unpack(self:originals()))
  for i = 1, #self - 1 do value = self[i](value) end
  return value
end

--- The originals that give `value`, by the functions' right_inverse, where they have one.
function List:inverse(value)
  local list = {value}
  for i = #self - 1, 0, -1 do
    if self[i]:has("right_inverse") then list = table.pack(self[i]:right_inverse(list[1])) end
  end
  return list
end

local function written(target, value)
  if value:is_shard_tensor() and not target:is_shard_tensor() then value = value:full_tensor() end
  target:copy_(value)
end

function List:assign(value)
  mh.no_grad(function()
    local originals = self:originals()
    for i, one in ipairs(self:inverse(value)) do written(originals[i], one) end
  end)
end

--- The tensor as the first of the list, under the names that PyTorch gives.
function List:hold(original, is_buffer)
  local list = mh.no_grad(function() return self:inverse(original:detach()) end)
  for i, one in ipairs(list) do
    local name = #list == 1 and "original" or "original" .. i - 1
    if is_buffer then
      self:register_buffer(name, one)
    elseif #list == 1 and not self[0]:has "right_inverse" then
      self:register_parameter(name, original)
    else
      self:register_parameter(name, base.Parameter(one, original.requires_grad))
    end
  end
end

local function is_parametrized(module, name)
  local computed = rawget(module, "_computed")
  return computed ~= nil and (name == nil and next(computed) ~= nil or name ~= nil and computed[name] ~= nil)
end

local function check(op, module, name)
  arguments.module(op, module)
  arguments.text(op, "name", name)
  if is_parametrized(module, name) then return end
  if module._parameters[name] ~= nil or module._buffers[name] ~= nil then return end
  local known = {}
  for one in module._parameters do known[#known + 1] = one end
  for one in module._buffers do known[#known + 1] = one end
  fail(("%s: %s has no parameter or buffer '%s'%s"):format(op, module:class_name(), name,
      mh.did_you_mean(name, known)))
end

local function shape_text(x) return "[" .. table.concat(x.shape, ", ") .. "]" end

--- Refuses a result of another shape or dtype than layers expect.
local function check_result(op, value, before)
  arguments.tensor(op, "the result of the parametrization", value)
  if shape_text(value) ~= shape_text(before) or value.dtype ~= before.dtype then
    fail(("%s: the parametrization gives %s %s, expected %s %s"):format(op, value.dtype, shape_text(value),
        before.dtype, shape_text(before)))
  end
end

local function register(op, module, name, parametrization)
  local before = module[name]
  if is_parametrized(module, name) then
    local list = module.parametrizations[name]
    check_result(op, mh.no_grad(function() return parametrization(before) end), before)
    list:append(parametrization)
    return module
  end
  local is_buffer = module._buffers[name] ~= nil
  local list = List(parametrization)
  list:train(module.training)
  list:hold(before, is_buffer)
  check_result(op, mh.no_grad(list), before)
  base.forget(module, name)
  if not rawget(module, "_computed") then rawset(module, "_computed", {}) end
  if not module:has "parametrizations" then module.parametrizations = containers.ModuleDict() end
  module.parametrizations:register_module(name, list)
  rawget(module, "_computed")[name] = {
    get = function() return list() end,
    set = function(value)
      check_result(op, value, list())
      list:assign(value)
    end,
  }
  return module
end

local kRegister = arguments.signature("register_parametrization", {"module", "name", "parametrization"})

--- mh.nn.utils.parametrize.register_parametrization(module, name, parametrization) -> Module
---   Computes a parameter or buffer in each use from another tensor, module.parametrizations[name].original, which is
---   trained in its place. If the parametrization has a method right_inverse(value), it gives the original of the
---   present value, and of values that are assigned later; several results are original0, original1, ... A second
---   parametrization of a name takes the result of the first. Register before optimizers and plans are made.
---   module      Module      has the parameter
---   name        string      of the parameter
---   parametrization   Module   its call gives the parameter, from the original
---   returns     Module      `module` itself
---   collective  as the parametrization's call
---   errors      ValueError: the module has no such parameter; a result of another shape or dtype
---   example
---     local Symmetric = nn.Module:extend("Symmetric")
---     function Symmetric:forward(x) return x:triu() + x:triu(1).T end
---     local net = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric())
---     net.weight:equal(net.weight.T)    --> true
---     for name in net:named_parameters() do print(name) end    --> bias | parametrizations.weight.original
function parametrize.register_parametrization(...)
  local op = "register_parametrization"
  local v = arguments.read(kRegister, ...)
  check(op, v.module, v.name)
  if not base.is_module(v.parametrization) then
    fail(("%s: the parametrization is %s, expected an nn.Module"):format(op, mh._describe(v.parametrization)))
  end
  return register(op, v.module, v.name, v.parametrization)
end

--- mh.nn.utils.parametrize.is_parametrized(module, name = nil) -> boolean
---   Whether a parameter of the module, or any, is computed from others.
---   module      Module      what is asked about
---   name        string?     of a parameter; nil for any
---   returns     boolean
---   collective  no
---   errors      TypeError: not a module
---   example
---     local net = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
---     nn.utils.parametrize.is_parametrized(net, "weight")    --> true
function parametrize.is_parametrized(module, name)
  arguments.module("is_parametrized", module)
  if name ~= nil then arguments.text("is_parametrized", "name", name) end
  return is_parametrized(module, name)
end

local kRemove = arguments.signature("remove_parametrizations", {"module", "name", {"leave_parametrized", true}})

local function remove(op, module, name, leave)
  check(op, module, name)
  if not is_parametrized(module, name) then
    fail(("%s: '%s' of %s is not parametrized"):format(op, name, module:class_name()))
  end
  local list = module.parametrizations[name]
  local originals = list:originals()
  if not leave and #originals > 1 then
    fail(op .. ": a parameter of several originals cannot become one of them\n  fix   leave_parametrized = true")
  end
  local value = leave and mh.no_grad(list):detach() or originals[1]
  local is_buffer = #list._parameters == 0
  rawget(module, "_computed")[name] = nil
  module.parametrizations._modules[name] = nil
  base.forget(module.parametrizations, name)
  if not is_parametrized(module) then base.forget(module, "parametrizations") end
  if is_buffer then
    module:register_buffer(name, value)
  else
    module:register_parameter(name, base.is_parameter(value) and value
        or base.Parameter(value, originals[1].requires_grad))
  end
  return module
end

--- mh.nn.utils.parametrize.remove_parametrizations(module, name, leave_parametrized = true) -> Module
---   Makes a computed parameter an ordinary one again.
---   module      Module      has the parameter
---   name        string      of the parameter
---   leave_parametrized   boolean   true keeps the value, false goes back to the original
---   returns     Module      `module` itself
---   collective  as the parametrizations' calls
---   errors      ValueError: the parameter is not parametrized
---   example
---     local net = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
---     nn.utils.parametrize.remove_parametrizations(net, "weight")
---     for name in net:named_parameters() do print(name) end    --> weight | bias
function parametrize.remove_parametrizations(...)
  local v = arguments.read(kRemove, ...)
  arguments.flag("remove_parametrizations", "leave_parametrized", v.leave_parametrized)
  return remove("remove_parametrizations", v.module, v.name, v.leave_parametrized)
end

-- ---- Norms --------------------------------------------------------------------------------------------------------

local function weight_of(op, v)
  check(op, v.module, v.name)
  local weight = v.module[v.name]
  if not (weight:is_floating_point() or weight:is_complex()) then
    fail(("%s: '%s' is %s, expected floating-point numbers"):format(op, v.name, mh._describe(weight)))
  end
  return weight
end

local function check_dim(op, dim, weight)
  if math.type(dim) ~= "integer" or dim < -math.max(weight.ndim, 1) or dim >= math.max(weight.ndim, 1) then
    fail(("%s: dim is %s, expected a dim of the weight of shape %s"):format(op, mh._describe(dim), shape_text(weight)))
  end
end

local WeightNorm = base.Module:extend("_WeightNorm")
function WeightNorm:init(dim) self.dim = dim end
function WeightNorm:forward(g, v) return mh._weight_norm(v, g, self.dim) end
function WeightNorm:right_inverse(weight) return mh.norm_except_dim(weight, 2, self.dim), weight end

local kWeightNorm = arguments.signature("weight_norm", {"module", {"name", "weight"}, {"dim", 0}})

--- mh.nn.utils.parametrizations.weight_norm(module, name = "weight", dim = 0) -> Module
--- mh.nn.utils.weight_norm(module, name = "weight", dim = 0) -> Module
---   Trains the length and the direction of weights apart (Salimans & Kingma 2016): w = g v / ||v||, with a norm for
---   each element along dim. State dicts of PyTorch's older function load with rename = {{"weight_g$",
---   "parametrizations.weight.original0"}, {"weight_v$", "parametrizations.weight.original1"}}.
---   module      Module      has the parameter
---   name        string      of the parameter
---   dim         integer     along which there are several norms; -1 for one norm of all
---   returns     Module      `module` itself, with parametrizations.weight.original0 (g) and original1 (v)
---   collective  its calls: over the mesh of a cut weight
---   errors      ValueError: the module has no such parameter, or it is parametrized already
---   example
---     local net = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
---     net.parametrizations.weight.original0.shape, net(mh.ones{4, 3}).shape    --> {2, 1}  {4, 2}
function parametrizations.weight_norm(...)
  local v = arguments.read(kWeightNorm, ...)
  check_dim("weight_norm", v.dim, weight_of("weight_norm", v))
  if is_parametrized(v.module, v.name) then
    fail(("weight_norm: '%s' of %s is parametrized already, and its length and direction are to be two originals\n" ..
        "  fix   call weight_norm first"):format(v.name, v.module:class_name()))
  end
  return register("weight_norm", v.module, v.name, WeightNorm(v.dim))
end

local SpectralNorm = base.Module:extend("_SpectralNorm")

function SpectralNorm:init(weight, steps, dim, eps)
  self.dim, self.steps, self.eps = dim, steps, eps
  if weight.ndim < 2 then return end
  local matrix = self:matrix(weight)
  local like = {dtype = weight.dtype, device = weight.device}
  for i, name in ipairs {"_u", "_v"} do
    self:register_buffer(name, self:unit(mh.empty({matrix:size(i - 1)}, like):normal_(0, 1)))
  end
  self:iterate(matrix, 15)
end

function SpectralNorm:matrix(weight)
  return (self.dim == 0 and weight or weight:movedim(self.dim, 0)):flatten(1)
end

function SpectralNorm:unit(x) return x / mh.linalg_vector_norm(x, 2):clamp_min(self.eps) end

function SpectralNorm:iterate(matrix, steps)
  mh.no_grad(function()
    matrix = matrix:detach()
    for _ = 1, steps do
      written(self._u, self:unit(mh.mv(matrix, self._v)))
      written(self._v, self:unit(mh.mv(matrix.mH, self._u)))
    end
  end)
end

function SpectralNorm:forward(weight)
  if weight.ndim < 2 then return self:unit(weight) end
  local matrix = self:matrix(weight)
  if self.training then self:iterate(matrix, self.steps) end
  local u, v = self._u:clone(), self._v:clone()
  return weight / (u:conj() * mh.mv(matrix, v)):sum()
end

function SpectralNorm:right_inverse(value) return value end

local kSpectralNorm = arguments.signature("spectral_norm", {"module", {"name", "weight"}, {"n_power_iterations", 1},
  {"eps", 1e-12}, arguments.optional "dim"})

--- mh.nn.utils.parametrizations.spectral_norm(module, name = "weight", {n_power_iterations = 1, eps = 1e-12,
---     dim = nil}) -> Module
--- mh.nn.utils.spectral_norm(module, name = "weight", {n_power_iterations = 1, eps = 1e-12, dim = nil}) -> Module
---   Divides a weight, seen as a matrix, by its largest singular value (Miyato et al. 2018), which steps of the power
---   method follow in each use of the weight while training.
---   module      Module      has the parameter
---   name        string      of the parameter
---   n_power_iterations   integer   steps in each use
---   eps         number      the least norm
---   dim         integer?    the rows of the matrix; nil for 1 of transposed convolutions and 0 of others
---   returns     Module      `module` itself, with parametrizations.weight.original and buffers
---                           parametrizations.weight.0._u, _v
---   collective  its calls: over the mesh of a cut weight
---   errors      ValueError: the module has no such parameter
---   example
---     local net = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3):double())
---     for _ = 1, 200 do local _ = net.weight end
---     mh.linalg_matrix_norm(net.weight:detach(), 2):sub(1):abs():item() < 1e-6    --> true
function parametrizations.spectral_norm(...)
  local op = "spectral_norm"
  local v = arguments.read(kSpectralNorm, ...)
  local weight = weight_of(op, v)
  arguments.count(op, "n_power_iterations", v.n_power_iterations, 1)
  arguments.number(op, "eps", v.eps)
  local dim = v.dim or (v.module:class_name():find "^ConvTranspose" and 1 or 0)
  check_dim(op, dim, weight)
  return register(op, v.module, v.name, SpectralNorm(weight, v.n_power_iterations, dim % math.max(weight.ndim, 1),
      v.eps))
end

return {parametrize = parametrize, parametrizations = parametrizations, remove = remove}
