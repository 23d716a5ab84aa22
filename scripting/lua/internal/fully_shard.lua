-- SPDX-License-Identifier: Apache-2.0
-- fully_shard and replicate for modules in Lua: data parallelism over some dims of a mesh.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local base = require "moonhalo.nn.module"
local casts = require "moonhalo.internal.parameter_casts"
local forward = require "moonhalo.internal.forward"
local sample_arguments = require "moonhalo.internal.sample_arguments"
require "moonhalo.internal.module_tree"
local is_mesh = require("moonhalo.internal.registered_mesh").is_mesh

local fail, is_tensor, is_module = mh.fail, mh.is_tensor, base.is_module
local training = mh._training

local unit_of_module = require("moonhalo.internal.registries").unit_of_module

-- Meshes of local results, kept: a script may drop them, and the collector frees them at other steps on other ranks.
local local_meshes = {}

local kOptions = {
  fully_shard = {"mesh", "min_numel", "unit_rows", "input", "reshard_after_forward", "reshard_after_backward",
                 "prefetch", "mp_policy", "output", "bucket_cap_mb"},
  replicate = {"mesh", "input", "output", "bucket_cap_mb"},
}
local kDefaults = {min_numel = 1024, unit_rows = 1, input = true, reshard_after_forward = true,
  reshard_after_backward = true, prefetch = 1, mp_policy = {}, output = "shard", bucket_cap_mb = 32}

local function check_policy(op, policy)
  if type(policy) ~= "table" then
    fail(op .. ": mp_policy is a table, as {param_dtype = \"bfloat16\"}, got " .. type(policy))
  end
  for key in pairs(policy) do arguments.choice(op .. ": mp_policy", "option", key, {"param_dtype", "reduce_dtype"}) end
end

local function check_types(op, options)
  check_policy(op, options.mp_policy)
  if options.output ~= "shard" and options.output ~= "local" then
    fail(('%s: output is "shard" or "local", got %s'):format(op, options.output))
  end
  local cap = options.bucket_cap_mb
  if type(cap) ~= "number" or not (cap > 0) or cap == math.huge then
    fail(("%s: bucket_cap_mb is a number of megabytes above 0, got %s"):format(op, cap))
  end
  for key, default in pairs(kDefaults) do
    local value = options[key]
    if type(default) == "boolean" and type(value) ~= "boolean" then
      fail(("%s: %s is true or false, got %s"):format(op, key, value))
    elseif type(default) == "number" and key ~= "bucket_cap_mb" and (math.type(value) ~= "integer" or value < 0) then
      fail(("%s: %s is an integer, not negative, got %s"):format(op, key, value))
    end
  end
end

local function read_options(op, given)
  if type(given) ~= "table" or getmetatable(given) then
    fail(op .. ": expected options, as {mesh = mesh[\"dp\"]}, got " .. mh._describe(given))
  end
  local options = setmetatable({}, {__index = kDefaults})
  for key, value in pairs(given) do
    arguments.choice(op, "option", key, kOptions[op])
    options[key] = value
  end
  if options.mesh == nil then fail(op .. ": no mesh given\n  fix   " .. op .. "(net, {mesh = mesh[\"dp\"]})") end
  if not is_mesh(options.mesh) then
    fail(("%s: mesh is not a mesh but %s\n  have  %s\n  fix   %s(net, {mesh = mesh[\"dp\"]})"):format(op,
      mh._describe(options.mesh), tostring(options.mesh), op))
  end
  if op == "fully_shard" and options.mesh.ndim > 2 then
    fail(("fully_shard: %s has %d dims\n  fix   give a slice of one dim, or of two, {copies, blocks}"):format(
      options.mesh, options.mesh.ndim))
  end
  check_types(op, options)
  return options
end

-- ---- Inputs ---------------------------------------------------------------------------------------------------------

local function input_hook(op, mesh)
  local check
  return function(module, args)
    check = check or sample_arguments.checker(("%s: %s"):format(op, module:class_name()), mesh)
    check(args)
    return sample_arguments.map(args, mesh, function(tensor) return mh.local_batch(tensor, mesh) end)
  end
end

--- This rank's block, for a loop that was written for one rank of several: each takes the mean of its own losses,
--- and the mean of their gradients is required.
local function output_hook(op, mesh)
  local function own_block(tensor)
    if not tensor:is_shard_tensor() then return tensor end
    for _, placement in ipairs(tensor.placements) do
      if placement:is_partial() or placement:is_shard() and placement.dim ~= 0 then
        fail(('%s: output = "local" takes results that are cut by samples alone, got %s'):format(op, placement))
      end
    end
    local block = tensor:to_local()
    if block.requires_grad then block:register_hook(function(grad) return grad / mesh:size() end) end
    return block
  end
  return function(_, _, output) return arguments.map_tensors(output, own_block) end
end

-- ---- Gathers --------------------------------------------------------------------------------------------------------

local function add_tensors(value, list)
  if is_tensor(value) then
    list[#list + 1] = value
  elseif type(value) == "table" and not getmetatable(value) then
    for _, item in pairs(value) do add_tensors(item, list) end
  end
  return list
end

--- Forward of `module` with casts in the places of its parameters, those of units below apart, and in those of its
--- arguments.
local function cast_for_forward(module, unit, dtype)
  local function cast(tensor) return tensor:is_floating_point() and tensor:to(dtype) or tensor end
  local function places(found, owner)
    found[#found + 1] = rawget(owner, "_parameters")
    for _, child in ipairs(owner:children()) do
      if not unit_of_module[child] then places(found, child) end
    end
    return found
  end
  forward.replace(module, function(inner)
    return function(self, ...)
      local args, list = arguments.map_tensors(table.pack(...), arguments.once(cast)), {}
      for _, registry in ipairs(places({}, module)) do
        for name, parameter in registry do list[#list + 1] = {registry, name, unit:cast_of(parameter)} end
      end
      return casts.call(list, inner, self, table.unpack(args, 1, args.n))
    end
  end)
end

local function gather_around_forward(module, unit)
  local function leave(problem)
    if problem ~= nil then unit:forward_failed() end
  end
  forward.replace(module, function(inner)
    return function(...)
      local _ <close> = at_end(leave)
      return inner(...)
    end
  end)
  module:register_forward_pre_hook(function() unit:before_forward() end)
  module:register_forward_hook(function(_, _, output) unit:after_forward(add_tensors(output, {})) end)
end

-- ---- fully_shard and replicate --------------------------------------------------------------------------------------

local function make_unit(op, module, given)
  arguments.module(op, module)
  local options = read_options(op, given)
  if unit_of_module[module] then
    if options.mesh.rank == 0 then
      mh._plans.warn(("%s: %s was called for this %s before, nothing is changed"):format(op, unit_of_module[module].op,
          module:class_name()))
    end
    return module
  end
  local gradients = {bucket_bytes = math.max(1, options.bucket_cap_mb * 2 ^ 20 // 1 | 0),
    reduce_dtype = options.mp_policy.reduce_dtype}
  local unit
  if op == "fully_shard" then
    unit = training.fully_shard(module, options.mesh, {min_numel = options.min_numel, unit_rows = options.unit_rows,
      reshard_after_forward = options.reshard_after_forward, prefetch = options.prefetch,
      reshard_after_backward = options.reshard_after_backward, param_dtype = options.mp_policy.param_dtype}, gradients)
  else
    unit = training.replicate(module, options.mesh, gradients)
  end
  for _, below in module:named_modules() do
    for _, hook in ipairs(unit_of_module[below] and unit_of_module[below].hooks or {}) do hook:remove() end
  end
  local hooks = {}
  unit_of_module[module] = {op = op, hooks = hooks}
  if options.input then hooks[1] = module:register_forward_pre_hook(input_hook(op, options.mesh), {prepend = true}) end
  if op == "fully_shard" then gather_around_forward(module, unit) end
  if options.mp_policy.param_dtype then cast_for_forward(module, unit, options.mp_policy.param_dtype) end
  if options.output == "local" then
    local_meshes[options.mesh] = true
    training.register_local_loss_mesh(options.mesh)
    hooks[#hooks + 1] = module:register_forward_hook(output_hook(op, options.mesh))
  end
  return module
end

local units = {}

--- mh.fully_shard(module, options) -> Module
---   Trains a module data parallel with every parameter kept in blocks: memory of parameters, gradients and optimizer
---   states is divided by the ranks. Call it bottom up for the parts of a model, then for all of it; make optimizers
---   afterwards. Parameters that no earlier call has placed are a unit, gathered by one message before forward and
---   backward.
---   module      Module      what is trained
---   options     table       {mesh = a mesh or slice of one; min_numel = 1024: smaller parameters are copied; unit_rows
---     = 1: blocks begin at multiples of this; input = true: plain tensors are this rank's own samples (false: the same
---     on all); reshard_after_forward = true, reshard_after_backward = true: parameters are freed after each; prefetch
---     = 1: units that are gathered ahead; mp_policy = {param_dtype, reduce_dtype}; output = "shard"|"local": results
---     as a ShardTensor, or this rank's block; bucket_cap_mb = 32: gradients in one message}
---   returns     Module      module itself
---   collective  over the whole mesh
---   errors      ValueError: no mesh, or an unknown option
---   example
---     local net = mh.fully_shard(nn.Linear(64, 32), {mesh = mesh})
---     local loss = net(mh.local_batch(mh.ones{2, 64})):square():mean()
---     loss:backward()
---     loss.shape, net.weight.is_sharded    --> {}  true
function units.fully_shard(module, options) return make_unit("fully_shard", module, options) end

--- mh.replicate(module, options) -> Module
---   Trains a module data parallel with a copy of every parameter on each rank; gradients are averaged over the batch.
---   module      Module      what is trained
---   options     table       {mesh, input = true, output = "shard"|"local", bucket_cap_mb = 32}, as of mh.fully_shard
---   returns     Module      module itself
---   collective  over the whole mesh
---   errors      ValueError: no mesh, or an unknown option
---   example
---     local net = mh.replicate(nn.Linear(4, 1), {mesh = mesh})
---     net(mh.local_batch(mh.ones{2, 4})).shape[1] == 2 * mh.world_size()    --> true
function units.replicate(module, options) return make_unit("replicate", module, options) end

--- mh.build_optimizer(module, class, ...) -> Optimizer
---   class(module:parameters(), options), for modules that are divided by mh.fully_shard, mh.replicate, mh.parallelize
---   or mh.parallelize_module. A ComputeConfig may stand before the options, as in nnScaler.
---   module      Module      what is trained
---   class       function    such as mh.optim.AdamW
---   returns     Optimizer   the optimizer
---   collective  no
---   errors      ValueError: another kind of argument, or a ComputeConfig of another run
---   example
---     mh.build_optimizer(nn.Linear(2, 1), mh.optim.SGD, {lr = 0.5}).param_groups[1].lr    --> 0.5
function units.build_optimizer(module, class, ...)
  if not is_module(module) then
    fail(("build_optimizer: expected an nn.Module, got %s\n" ..
        "  fix   mh.build_optimizer(net, mh.optim.AdamW, {lr = 1e-3})"):format(mh._describe(module)))
  end
  if type(class) ~= "function" then
    fail(("build_optimizer: expected a class of optimizers, got %s\n" ..
      "  fix   mh.build_optimizer(net, mh.optim.AdamW, {lr = 1e-3})"):format(mh._describe(class)))
  end
  local given, compute_config = table.pack(...), require "moonhalo.policy.compute_config"
  local leads = compute_config.is_config(given[1]) or (given.n > 1 and given[1] == nil)
  local config, options = leads and given[1] or nil, given[leads and 2 or 1]
  if given.n > (leads and 2 or 1) then
    fail(("build_optimizer: too many arguments\n  have  %d after the class\n" ..
        "  fix   mh.build_optimizer(net, mh.optim.AdamW, {lr = 1e-3}), "
      .. "or a ComputeConfig before the options"):format(given.n))
  end
  if config and config.runtime_ngpus ~= mh.world_size() then
    fail(("build_optimizer: the ComputeConfig is of another run\n  have  runtime_ngpus = %d, %d ranks\n" ..
        "  fix   give the one of "
      .. "mh.parallelize, or leave it out"):format(config.runtime_ngpus, mh.world_size()))
  end
  return class(module:parameters(), options)
end

return units
