-- SPDX-License-Identifier: Apache-2.0
-- Carries placements (policies.lua) out on a module.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local containers = require "moonhalo.nn.containers"
local recompute = require "moonhalo.policy.recompute"
local steps = require "moonhalo.policy.steps"

local all_instances = require("moonhalo.internal.registries").all_instances

local fail = mh.fail
local division = {}

-- ---- Meshes ---------------------------------------------------------------------------------------------------------

--- The mesh of a run: the units, then the mesh of a unit.
local function make_mesh(module, config, placed, per_byte)
  local sizes, names, first = {config.units}, {"unit"}, module:parameters()[1]
  for i, size in ipairs(placed.mesh[1]) do sizes[i + 1], names[i + 1] = size, placed.mesh[2][i] end
  local mesh = mh.init_device_mesh(first and first.device or "cpu", sizes, names)
  mesh:set_macs_per_byte(per_byte)
  return mesh
end

--- The mesh dims that hold tensors.
local function dims_of_tensors(placed)
  local names = {}
  for _, name in ipairs(placed.mesh[2]) do
    if name ~= "pp" then names[#names + 1] = name end
  end
  return names
end

-- ---- Parameters -----------------------------------------------------------------------------------------------------

--- The plan for the mesh of a stage, units and all. Parameters of a slice cannot be lifted to the mesh that has the
--- stages in it, so blocks over the units are placements here.
local function plan_of_stage(stage, names_in_model, placed, config)
  local parameter, dims = {}, dims_of_tensors(placed)
  for name, tensor in stage:named_parameters() do
    local list = (placed.parameter or {})[names_in_model[tensor]] or {}
    local full = {"Replicate()"}
    for i = 1, #dims do full[i + 1] = list[i] or "Replicate()" end
    local dim = config.use_zero and config.units > 1 and mh._training.storage_dim(tensor.shape, list, config.units)
    if dim then full[1] = ("Stored(%d)"):format(dim) end
    parameter[name] = full
  end
  return {parameter = parameter}
end

--- The mesh dim of a unit over which parameters are kept in blocks, if any.
local function stored_dim(placed, config)
  if placed.stored or not config.use_zero then return placed.stored end
  for name, dim in pairs(placed.inputs or {}) do
    if dim == 0 then return name end
  end
end

--- Divides the module over the ranks of a unit, then copies or stores it over the units.
local function divide(module, placed, config, mesh, src)
  local plan = {parameter = placed.parameter, forward = placed.forward}
  mh.parallelize_module(module, mesh[placed.mesh[2]], plan, {src_data_rank = src})
  local stored = stored_dim(placed, config)
  if config.use_zero and config.units > 1 then
    -- Gathered parameters stay until the optimizer writes: as many bytes as between copies, however many micro-batches.
    mh.fully_shard(module, {mesh = mesh["unit"], input = false, reshard_after_forward = false,
                            reshard_after_backward = false, bucket_cap_mb = config.reducer_bucket_cap_mb})
  elseif stored then
    mh.fully_shard(module, {mesh = mesh[{"unit", stored}], input = false, bucket_cap_mb = config.reducer_bucket_cap_mb})
  else
    mh.replicate(module, {mesh = mesh["unit"], input = false, bucket_cap_mb = config.reducer_bucket_cap_mb})
  end
  if config.use_async_reducer then module:set_requires_gradient_sync(true) end
end

--- The stages of the plan, each of some of module:stages().
local function grouped_stages(module, placed)
  local list, groups, first = module:stages(), {}, 1
  for i, size in ipairs(placed.stages) do
    groups[i] = size == 1 and list[first] or containers.Sequential(table.unpack(list, first, first + size - 1))
    first = first + size
  end
  return groups
end

local function make_pipeline(module, placed, config, mesh, src)
  local names, groups, options = {}, grouped_stages(module, placed), config.pas_config
  for name, parameter in module:named_parameters() do names[parameter] = name end
  rawset(module, "stages", function() return groups end)
  local pipe = mh.pipeline(module, {
    mesh = mesh, micros = placed.micro_batches or options.pipeline_nmicros or #groups,
    schedule = options.pipeline_scheduler or "1f1b",
    parallelize = function(stage, slice)
      mh.parallelize_module(stage, slice, plan_of_stage(stage, names, placed, config), {src_data_rank = src})
    end,
  })
  rawset(module, "stages", nil)
  return pipe
end

-- ---- division.apply -------------------------------------------------------------------------------------------------

-- A module that is a pipeline has these from the stages of this rank.
local kOfStages = {"parameters", "named_parameters", "state_dict", "load_state_dict", "clip_grad_norm"}

--- Carries `placed` out on the module, in place. `src`: whose parameters count (0, or false: every rank's own, which
--- are equal). `per_byte`: what the mesh's products go by. Afterwards module.parallel is {mesh, config, plan,
--- pipeline}. Collective over all ranks.
function division.apply(module, placed, config, names, src, per_byte)
  local mesh = make_mesh(module, config, placed, per_byte)
  local state = {
    module = module, names = names, mesh = mesh, inputs = placed.inputs or {}, entered = false,
    sums_in_backward = config.use_async_reducer, micro_batches = placed.micro_batches,
  }
  recompute.apply(module, placed.recompute)  -- before fully_shard gathers around forward
  if placed.stages then
    local pipe = make_pipeline(module, placed, config, mesh, src)
    state.pipe, state.mesh = pipe, pipe.mesh
    for _, name in ipairs(kOfStages) do
      rawset(module, name, mh._method(function(_, ...) return pipe[name](pipe, ...) end, name, all_instances, "Module"))
    end
  else
    divide(module, placed, config, mesh, src)
    module:register_forward_pre_hook(function(_, args)
      return steps.place(args, state)
    end, {prepend = true})
  end
  rawset(module, "parallel", {mesh = mesh, config = config, plan = placed, pipeline = state.pipe})
  if config.use_end2end then
    steps.add(state)
  else
    steps.refuse(module)
  end
  return module
end

-- ---- Weights --------------------------------------------------------------------------------------------------------

--- mh.broadcast_weights(module, plan_ngpus) -> Module
---   Gives every unit of plan_ngpus ranks the parameters and buffers of the first unit: the blocks of rank r become
---   those of rank r modulo plan_ngpus.
---   module      Module      divided in the same way in every unit
---   plan_ngpus   integer    ranks of a unit
---   returns     Module      module itself
---   collective  over all ranks
---   errors      ValueError: the ranks are not whole units, or parameters are in blocks over the units
---   example
---     local net = nn.Linear(2, 2)
---     mh.broadcast_weights(net, 1):class_name()    --> Linear
function division.broadcast_weights(module, plan_ngpus)
  arguments.module("broadcast_weights", module)
  local ranks = mh.world_size()
  if math.type(plan_ngpus) ~= "integer" or plan_ngpus < 1 or ranks % plan_ngpus ~= 0 then
    fail(("broadcast_weights: the ranks are not whole units\n  have  %d ranks, plan_ngpus = %s\n" ..
        "  fix   give the number of ranks of a unit")
      :format(ranks, mh._describe(plan_ngpus)))
  end
  local units = mh.init_device_mesh("cpu", {ranks // plan_ngpus, plan_ngpus}, {"unit", "rank"})["unit"]
  mh.no_grad(function()
    for _, tensors in ipairs {module:named_parameters(), module:named_buffers()} do
      for name, tensor in tensors do
        local own = tensor:is_shard_tensor() and tensor:to_local() or tensor
        for i, placement in ipairs(tensor:is_shard_tensor() and tensor.placements or {}) do
          if tensor.mesh.names[i] == "unit" and not placement:is_replicate() then
            fail(("broadcast_weights: '%s' is in blocks over the units, which are not copies of each other"
              .. "\n  have  %s\n  fix   broadcast weights before use_zero divides them"):format(name,
                  tostring(placement)))
          end
        end
        own:copy_(mh.distribute_tensor(own:detach(), units, {mh.Replicate()}, {src = 0}):to_local())
      end
    end
  end)
  return module
end

return division
