-- SPDX-License-Identifier: Apache-2.0
-- fully_shard and replicate for modules in Lua: data parallelism over some dims of a mesh.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"

local fail, is_tensor, is_module = mh.fail, mh.is_tensor, base.is_module
local training = mh._training

local kUnits = setmetatable({}, {__mode = "k"})   -- module -> {op, input hook}
local kPlaced = setmetatable({}, {__mode = "k"})  -- a tensor before -> after; what was made -> itself

local kOptions = {
  fully_shard = {"mesh", "min_numel", "input", "reshard_after_forward", "reshard_after_backward", "prefetch"},
  replicate = {"mesh", "input"},
}
local kDefaults = {min_numel = 1024, input = true, reshard_after_forward = true, reshard_after_backward = true, prefetch = 1}

local function check_types(op, options)
  for key, default in pairs(kDefaults) do
    local value = options[key]
    if type(default) == "boolean" and type(value) ~= "boolean" then
      fail(("%s: %s is true or false, got %s"):format(op, key, value))
    elseif type(default) == "number" and (math.type(value) ~= "integer" or value < 0) then
      fail(("%s: %s is a whole number, not negative, got %s"):format(op, key, value))
    end
  end
end

local function read_options(op, given)
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    fail(op .. ": wanted options, as {mesh = mesh[\"dp\"]}, got " .. type(given))
  end
  local options = setmetatable({}, {__index = kDefaults})
  for key, value in pairs(given) do
    local known = false
    for _, name in ipairs(kOptions[op]) do known = known or name == key end
    if not known then
      fail(op .. ": unknown option '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), kOptions[op])
        .. "\n  have  " .. table.concat(kOptions[op], ", "))
    end
    options[key] = value
  end
  if options.mesh == nil then fail(op .. ": no mesh given\n  fix   " .. op .. "(net, {mesh = mesh[\"dp\"]})") end
  if op == "fully_shard" and options.mesh.ndim > 2 then
    fail(("fully_shard: %s has %d dims\n  fix   give a slice of one dim, or of two, {copies, blocks}"):format(
      options.mesh, options.mesh.ndim))
  end
  check_types(op, options)
  return options
end

-- ---- Parameters -----------------------------------------------------------------------------------------------------

--- A tensor in several modules stays one, also where each of them is a unit of its own.
local function place(tensor, is_parameter, make)
  if kPlaced[tensor] then return kPlaced[tensor] end
  local new = make(tensor)
  if is_parameter and not rawequal(new, tensor) then new = base.Parameter(new, new.requires_grad) end
  kPlaced[tensor], kPlaced[new] = new, new
  return new
end

local function place_tensors(op, root, options)
  for path, module in root:named_modules() do
    for _, registry in ipairs {"_parameters", "_buffers"} do
      local tensors, stores = rawget(module, registry), op == "fully_shard" and registry == "_parameters"
      for name, tensor in tensors do
        local where = ("%s: '%s'"):format(op, path == "" and name or path .. "." .. name)
        tensors[name] = place(tensor, registry == "_parameters", function(old)
          if old.grad then
            fail(where .. " has a gradient\n  fix   call " .. op .. " before the first backward, and make optimizers after it")
          end
          if stores then return training.store_parameter(old, options.mesh, options.min_numel, where) end
          return training.copy_tensor(old, options.mesh, where)
        end)
      end
    end
  end
end

-- ---- Inputs ---------------------------------------------------------------------------------------------------------

local function batch_of(value, mesh)
  if is_tensor(value) then return mh.local_batch(value, mesh) end
  if type(value) ~= "table" or getmetatable(value) ~= nil then return value end
  local copy = {}
  for key, item in pairs(value) do copy[key] = batch_of(item, mesh) end
  return copy
end

local function input_hook(mesh)
  return function(_, args)
    for i = 1, args.n do args[i] = batch_of(args[i], mesh) end
    return args
  end
end

-- ---- Gathers --------------------------------------------------------------------------------------------------------

local function add_tensors(value, list)
  if is_tensor(value) then
    list[#list + 1] = value
  elseif type(value) == "table" and getmetatable(value) == nil then
    for _, item in pairs(value) do add_tensors(item, list) end
  end
  return list
end

local function gather_around_forward(module, unit)
  module:register_forward_pre_hook(function() unit:before_forward() end)
  module:register_forward_hook(function(_, _, output) unit:after_forward(add_tensors(output, {})) end)
end

-- ---- fully_shard and replicate --------------------------------------------------------------------------------------

local function make_unit(op, module, given)
  if not is_module(module) then
    fail(op .. ": wanted an nn.Module, got " .. (is_tensor(module) and "a tensor" or type(module)))
  end
  local options = read_options(op, given)
  if kUnits[module] then
    if options.mesh.rank == 0 then
      mh._plans.warn(("%s: %s was called for this %s before, nothing is changed"):format(op, kUnits[module].op, module:class_name()))
    end
    return module
  end
  place_tensors(op, module, options)
  for _, below in module:named_modules() do
    local unit = kUnits[below]
    if unit and unit.hook then unit.hook:remove() end
  end
  local hook = options.input and module:register_forward_pre_hook(input_hook(options.mesh), {prepend = true}) or nil
  kUnits[module] = {op = op, hook = hook}
  local unit = training.unit(module:parameters(), {
    reshard_after_forward = options.reshard_after_forward, prefetch = options.prefetch,
    reshard_after_backward = op == "fully_shard" and options.reshard_after_backward,
  })
  if op == "fully_shard" then gather_around_forward(module, unit) end
  return module
end

local units = {}

--- Trains `module` data parallel over the dims of `options.mesh`, a slice of one mesh, with every parameter kept in blocks
--- over its last dim: memory of parameters, gradients and optimizer states is divided by the ranks. Call it bottom up, once
--- per mesh; make optimizers afterwards. Collective over the whole mesh. Returns the module.
--- Options: mesh; min_numel (1024: parameters of fewer elements are copied); input (true: plain tensors that the outermost
--- such module is called with are this rank's own samples, as mh.local_batch makes of labels; false: plain tensors count as
--- replicated, as everywhere else).
---
--- The parameters that no earlier call has placed are a unit: one message per pair of ranks brings them together before the
--- module's forward, and one before its backward. reshard_after_forward, reshard_after_backward: whether they are freed
--- after each. true, true (as at first; ZeRO-3): each is whole for one unit at a time. false, true (ZeRO-2): gathered once a
--- step. false, false (ZeRO-1): once a step, and kept for all backward passes until an optimizer writes them. prefetch (1):
--- so many units that come next, in the order of the last pass, are on their way meanwhile. Results do not depend on these.
function units.fully_shard(module, options) return make_unit("fully_shard", module, options) end

--- As fully_shard, with a copy of every parameter on all ranks of `options.mesh`. Options: mesh, input.
function units.replicate(module, options) return make_unit("replicate", module, options) end

--- `class(module:parameters(), options)`, as in `mh.build_optimizer(net, mh.optim.AdamW, {lr = 1e-3})`: for modules of
--- which fully_shard, replicate or parallelize_module has placed the parameters.
function units.build_optimizer(module, class, options)
  if not is_module(module) then fail("build_optimizer: wanted an nn.Module, got " .. type(module)) end
  return class(module:parameters(), options)
end

return units
