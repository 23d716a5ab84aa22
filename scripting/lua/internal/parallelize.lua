-- SPDX-License-Identifier: Apache-2.0
-- parallelize_module for modules in Lua. What a plan means is decided by engine/model/parallel_plan.cpp, as for
-- torch::nn.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local replaced = require "moonhalo.internal.forward"
local styles = require "moonhalo.internal.parallel_styles"
local registered = require "moonhalo.internal.registered_mesh"

local fail, is_tensor, is_module = mh.fail, mh.is_tensor, base.is_module
local plans = mh._plans
local parallelize = {warn = plans.warn}

-- module -> {mesh =, plan = the plan as it was understood, custom = names}
local kDone = setmetatable({}, {__mode = "k"})

local function path(prefix, name) return prefix == "" and name or prefix .. "." .. name end

local function check_module(op, module)
  if not is_module(module) then
    fail(op .. ": wanted an nn.Module, got " .. mh._describe(module))
  end
end

-- ---- What the plan needs to know ------------------------------------------------------------------------------------

--- The class of a module and those that it extends.
function parallelize.kinds_of(module)
  local kinds, class = {module:class_name()}, module.super
  while class do
    kinds[#kinds + 1] = class.name
    class = rawget(class, "super")
  end
  return kinds
end

local function slots_of(module)
  local slots = {}
  for _, registry in ipairs {"_parameters", "_buffers"} do
    for name, tensor in rawget(module, registry) do
      slots[#slots + 1] = {name = name, tensor = tensor, registry = registry}
    end
  end
  return slots
end

local function facts_of(root)
  local modules, facts = {}, {}
  for name, module in root:named_modules() do
    local tensors = {}
    for i, slot in ipairs(slots_of(module)) do tensors[i] = {name = slot.name, shape = slot.tensor.shape} end
    modules[#modules + 1] = {name = name, module = module}
    facts[#facts + 1] = {name = name, kinds = parallelize.kinds_of(module), tensors = tensors}
  end
  return modules, facts
end

-- ---- Parameters -----------------------------------------------------------------------------------------------------

--- Replaces parameters and buffers; a tensor in several modules stays one, placed as the entry says that lists it.
--- `sharded`: every rank's tensors are its blocks.
local function place_tensors(modules, resolved, mesh, src, sharded)
  local kWhole = {placements = {}, listed = false}
  for i = 1, mesh.ndim do kWhole.placements[i] = mh.Replicate() end
  local slots = {}
  for i, entry in ipairs(modules) do
    for _, slot in ipairs(slots_of(entry.module)) do
      slots[#slots + 1] = {name = path(entry.name, slot.name), tensor = slot.tensor, owner = entry.module,
        registry = slot.registry, key = slot.name, plan = resolved and resolved[i].tensors[slot.name] or kWhole}
    end
  end
  local shared = {}
  for i, placed in ipairs(plans.distribute_parameters(slots, mesh, src, sharded or false)) do
    local slot = slots[i]
    if placed then
      shared[slot.tensor] = shared[slot.tensor] or (slot.registry == "_parameters" and base.as_parameter(placed)
          or placed)
      rawget(slot.owner, slot.registry)[slot.key] = shared[slot.tensor]
    end
  end
end

-- ---- Activations ----------------------------------------------------------------------------------------------------

--- Position of every named argument of `forward`, their names, and whether more may come in a last table.
function parallelize.argument_names(forward)
  forward = replaced.written(forward)
  local info = debug.getinfo(forward, "u")
  local positions, names, open = {}, {}, info.isvararg
  for i = 2, info.nparams do
    local name = debug.getlocal(forward, i)
    positions[name], names[#names + 1] = i - 1, name
    open = open or name == "options" or name == "kwargs"
  end
  return positions, names, open
end

--- Moves in order what is a tensor among `jobs` = {{plan, value, put}, ...}, and calls put(moved) for each.
local function move(jobs, mesh, where)
  local list, tensors, puts = {}, {}, {}
  for _, job in ipairs(jobs) do
    if is_tensor(job[2]) then list[#list + 1], tensors[#tensors + 1], puts[#puts + 1] = job[1], job[2], job[3] end
  end
  if #list == 0 then return end
  for i, moved in ipairs(plans.move_arguments(list, tensors, mesh, where)) do puts[i](moved) end
end

local function input_hook(entry, plan, mesh)
  local where = "'" .. path(entry.name, "input") .. "'"
  local positions, names, open = parallelize.argument_names(entry.module.forward)
  for name in pairs(plan.names) do
    if not positions[name] and not open then
      fail(("parallelize_module: %s names '%s', forward has no such argument%s\n  have  %s"):format(where, name,
        mh.did_you_mean(name, names), table.concat(names, ", ")))
    end
  end
  return function(_, args)
    local jobs = {}
    local function at(i) return function(moved) args[i] = moved end end
    for i, argument in pairs(plan.positions) do
      if i > args.n then fail(("%s lists %d arguments, the call has %d"):format(where, i, args.n)) end
      jobs[#jobs + 1] = {argument, args[i], at(i)}
    end
    for name, argument in pairs(plan.names) do
      local i, last = positions[name], args[args.n]
      if i then
        if i <= args.n then jobs[#jobs + 1] = {argument, args[i], at(i)} end
      elseif arguments.is_options(last) and last[name] ~= nil then
        jobs[#jobs + 1] = {argument, last[name], function(moved)
          local copy = {}
          for key, value in pairs(args[args.n]) do copy[key] = value end
          copy[name] = moved
          args[args.n] = copy
        end}
      end
    end
    move(jobs, mesh, where)
    return args
  end
end

local function output_hook(entry, plan, mesh)
  local where = "'" .. path(entry.name, "output") .. "'"
  local function each(list, count)
    local jobs = {}
    local function add(key, argument)
      jobs[#jobs + 1] = {argument, list[key], function(moved) list[key] = moved end}
    end
    for i, argument in pairs(plan.positions) do
      if i > count then fail(("%s lists %d results, there are %d"):format(where, i, count)) end
      add(i, argument)
    end
    for name, argument in pairs(plan.names) do
      if list[name] == nil then fail(where .. ": no result is named '" .. name .. "'") end
      add(name, argument)
    end
    move(jobs, mesh, where)
    return list
  end
  return function(_, _, output)
    local listed = type(output) == "table" and not getmetatable(output)
    if not listed then return each({output, n = 1}, 1) end
    if output.n then return each(output, output.n) end
    local copy = {}
    for key, value in pairs(output) do copy[key] = value end
    return {each(copy, #copy), n = 1}
  end
end

-- ---- parallelize_module ---------------------------------------------------------------------------------------------

local kOptions = {"src_data_rank", "unmatched", "tp_mesh_dim", "is_model_sharded", "factory"}

local function factory_plan(given)
  if given == true then return true end
  local plan = {}
  for name, placements in pairs(given) do plan[name] = type(placements) == "userdata" and {placements} or placements end
  return plan
end

local function read_options(given, mesh)
  local options = {src_data_rank = 0, unmatched = "error"}
  for key, value in pairs(given or {}) do
    arguments.choice("parallelize_module", "option", key, kOptions)
    options[key] = value
  end
  if options.src_data_rank == mh.none or options.src_data_rank == false then options.src_data_rank = nil end
  if options.tp_mesh_dim then
    local name = mesh.names[options.tp_mesh_dim + 1]
    if not name then
      fail(("parallelize_module: tp_mesh_dim %s is no dimension of %s"):format(options.tp_mesh_dim, mesh))
    end
    if mesh.rank == 0 then
      parallelize.warn(("parallelize_module: tp_mesh_dim is deprecated\n  fix   give the slice mesh[\"%s\"]"):format(
          name))
    end
    if mesh.ndim > 1 then mesh = mesh[name] end
  end
  return options, mesh
end

--- The mesh, plan and options of parallelize_module's arguments after the module. Without a mesh it is the registered
--- one.
local function with_mesh(mesh, plan, given)
  if registered.is_mesh(mesh) then return mesh, plan, given end
  local kFix = "\n  fix   mh.parallelize_module(net, mesh, plan), or mh.set_mesh(mesh) before and leave it out"
  if mesh ~= nil and not styles.is_plan(mesh) then
    fail("parallelize_module: wanted a mesh\n  have  " .. mh._describe(mesh) .. kFix)
  end
  if not registered.has_mesh() then
    fail("parallelize_module: wanted a mesh\n  have  none, and none is registered" .. kFix)
  end
  if mesh ~= nil then plan, given = mesh, plan end
  return registered.get_mesh(), plan, given
end

--- mh.parallelize_module(module, mesh, plan, options = nil) -> Module
---   Divides a module over a mesh as a plan says, in place: parameters become ShardTensors, and inputs and outputs of
---   modules are moved. Make optimizers afterwards. Without a mesh, mh.parallelize_module(net, plan), it is that of
---   mh.set_mesh. A second call warns and changes nothing.
---   module      Module      what is divided
---   mesh        DeviceMesh?   the mesh
---   plan        table       styles by name or pattern of a module, {["blocks.*.fc1"] = mh.ColwiseParallel()}, one
---     style, or placements, {parameter = {["fc.weight"] = {mh.Shard(0)}}, forward = {input = {{mh.Shard(2)}}}}
---   options     table?      {src_data_rank = 0 (false: each rank cuts its own equal copy), unmatched = "error"|"warn"
---     (a name that matches nothing), is_model_sharded = false (tensors are blocks already), factory (placements of
---     what zeros, ones, full, arange, eye and linspace make in forward; true for Replicate)}
---   returns     Module      module itself
---   collective  over the mesh
---   errors      ValueError: a name that matches nothing, with the nearest one; sizes that cannot be cut
---   example
---     local net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
---     mh.parallelize_module(net, mesh, {["0"] = mh.ColwiseParallel(), ["2"] = mh.RowwiseParallel()})
---     net(mh.ones{3, 4}).shape, net[0].weight.placements[1].dim    --> {3, 2}  0
function parallelize.parallelize_module(module, mesh, plan, given)
  check_module("parallelize_module", module)
  mesh, plan, given = with_mesh(mesh, plan, given)
  local options
  options, mesh = read_options(given, mesh)
  if kDone[module] then
    if mesh.rank == 0 then
      parallelize.warn(("parallelize_module: this %s was parallelized before, nothing is changed"):format(
          module:class_name()))
    end
    return module
  end
  local custom
  plan, custom = styles.read_plan("parallelize_module", plan)
  if options.is_model_sharded and plan:has_styles() then
    fail("parallelize_module: is_model_sharded needs a plan of placements, since styles read the shapes of whole " ..
        "parameters"
      .. "\n  fix   give {parameter = {...}, forward = {...}}")
  end
  local factory = options.factory and factory_plan(options.factory)
  if factory then plans.check_factories(factory, mesh) end
  local modules, facts = facts_of(module)
  local resolved, understood = plan:resolve(facts, mesh, options.unmatched)
  local hooks, styled = {}, {}
  for i, entry in ipairs(modules) do
    local inputs, outputs = resolved[i].inputs, resolved[i].outputs
    if inputs then hooks[#hooks + 1] = {entry.module, "register_forward_pre_hook", input_hook(entry, inputs, mesh)} end
    if outputs then hooks[#hooks + 1] = {entry.module, "register_forward_hook", output_hook(entry, outputs, mesh)} end
  end
  for i, entry in ipairs(modules) do
    for _, number in ipairs(resolved[i].custom) do
      styled[#styled + 1] = entry.name
      custom[number]:apply(entry.module, mesh)
    end
  end
  place_tensors(modules, resolved, mesh, options.src_data_rank, options.is_model_sharded)
  if factory then
    replaced.replace(module, function(forward)
      return function(...) return plans.capture_factories(factory, mesh, forward, ...) end
    end)
  end
  for _, hook in ipairs(hooks) do hook[1][hook[2]](hook[1], hook[3]) end
  kDone[module] = {mesh = mesh, plan = understood, custom = styled}
  return module
end

--- Returns what parallelize_module did to this very module: {mesh =, plan =, custom =}, nil when it did nothing.
function parallelize.done(module) return kDone[module] end

--- mh.expert_parallel() -> nothing
---   Always an error: no operator sends tokens to the ranks of their experts. Keep the experts in one parameter
---   [experts, ...] and cut its dim 0.
---   returns     nothing
---   collective  no
---   errors      ValueError: always
---   example
---     (pcall(mh.expert_parallel))    --> false
function parallelize.expert_parallel()
  fail("expert_parallel: NotImplementedError: expert parallelism is not part of Moonhalo, in no function and as no " ..
      "mesh "
    .. "dimension \"ep\" of a policy\n" ..
        "  fix   keep the experts in one parameter [experts, ...] and place its first dim: "
    .. "{parameter = {[\"moe.weight\"] = {mh.Shard(0)}}}")
end

--- mh.distribute_module(module, mesh, partition = nil, input = nil, output = nil) -> Module
---   Distributes a module by functions, as PyTorch's: partition(name, module, mesh) places what it likes for the module
---   (name "") and every module below; other parameters become replicated.
---   module      Module      what is distributed
---   mesh        DeviceMesh  the mesh
---   partition   function?   partition(name, module, mesh)
---   input       function?   input(module, args, mesh) runs before forward and may return new arguments
---   output      function?   output(module, result, mesh) runs after forward and may return a new result
---   returns     Module      module itself
---   collective  over the mesh
---   errors      ValueError: not a module, or not a mesh
---   example
---     local net = mh.distribute_module(nn.Linear(2, 6), mesh, function(_, module, on)
---       module.weight = nn.Parameter(mh.distribute_tensor(module.weight:detach(), on, {mh.Shard(0)}))
---     end)
---     net.weight.placements[1].dim, net.bias.placements[1]:is_replicate()    --> 0  true
function parallelize.distribute_module(module, mesh, partition, input, output)
  check_module("distribute_module", module)
  if not registered.is_mesh(mesh) then
    fail(("distribute_module: wanted a mesh\n  have  %s\n" ..
      "  fix   mh.distribute_module(net, mh.init_device_mesh(\"cpu\", {%d}))"):format(
      mh._describe(mesh), mh.world_size()))
  end
  local modules = {}
  for name, one in module:named_modules() do modules[#modules + 1] = {name = name, module = one} end
  if partition then
    for _, entry in ipairs(modules) do partition(entry.name, entry.module, mesh) end
  end
  place_tensors(modules, nil, mesh, 0)
  if input then module:register_forward_pre_hook(function(self, args) return input(self, args, mesh) end) end
  if output then module:register_forward_hook(function(self, _, result) return output(self, result, mesh) end) end
  return module
end

--- mh.finish_grad_sync(of) -> nothing
---   Reduces gradients that are still sums over ranks, several in one message. Optimizers do it in their step.
---   of          Module|{Tensor}   a module, or a list of parameters
---   returns     nothing
---   collective  over the meshes of the parameters
---   example
---     local net = nn.Linear(2, 1)
---     net(mh.ones{1, 2}):sum():backward()
---     mh.finish_grad_sync(net)
---     net.bias.grad:item()    --> 1.0
function parallelize.finish_grad_sync(of)
  if is_module(of) then of = of:parameters() end
  mh._training.finish_grad_sync(of)
end

return parallelize
