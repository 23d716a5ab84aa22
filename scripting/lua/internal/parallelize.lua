-- SPDX-License-Identifier: Apache-2.0
-- parallelize_module for modules in Lua: reads its arguments. engine/model/parallelize.cpp divides the module, as those
-- of torch::nn.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local styles = require "moonhalo.internal.parallel_styles"
local registered = require "moonhalo.internal.registered_mesh"
local tree = require "moonhalo.internal.module_tree"

local fail, is_module = mh.fail, base.is_module
local parallelize = {warn = mh._plans.warn, kinds_of = tree.kinds, argument_names = tree.argument_names}

local function check_module(op, module)
  arguments.module(op, module)
end

-- ---- parallelize_module ---------------------------------------------------------------------------------------------

local kOptions = {"src_data_rank", "unmatched", "tp_mesh_dim", "is_model_sharded", "factory"}

local function factory_plan(given)
  if given == true then return true end
  if type(given) ~= "table" or getmetatable(given) then
    fail(("parallelize_module: factory is %s, expected true or placements by name"):format(mh._describe(given)))
  end
  local plan = {}
  for name, placements in pairs(given) do plan[name] = type(placements) == "userdata" and {placements} or placements end
  return plan
end

local function read_options(given, mesh)
  local options = {src_data_rank = 0, unmatched = "error"}
  for key, value in pairs(arguments.options("parallelize_module", given)) do
    arguments.choice("parallelize_module", "option", key, kOptions)
    options[key] = value
  end
  if options.src_data_rank == mh.none or options.src_data_rank == false then options.src_data_rank = nil end
  if options.tp_mesh_dim ~= nil then
    arguments.count("parallelize_module", "tp_mesh_dim", options.tp_mesh_dim, 0)
    local name = mesh.names[options.tp_mesh_dim + 1]
    if not name then
      fail(("parallelize_module: tp_mesh_dim %s is not a dimension of %s"):format(options.tp_mesh_dim, mesh))
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
    fail("parallelize_module: expected a mesh\n  have  " .. mh._describe(mesh) .. kFix)
  end
  if not registered.has_mesh() then
    fail("parallelize_module: expected a mesh\n  have  none, and none is registered" .. kFix)
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
---   plan        table       styles by name, pattern or regular expression (with a %) of modules,
---     {["blocks.*.fc1"] = mh.ColwiseParallel(), ["blocks%.%d+%.fc2"] = mh.RowwiseParallel()}, one style, or
---     placements, {parameter = {["fc.weight"] = {mh.Shard(0)}}, forward = {input = {{mh.Shard(2)}}}}
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
  if parallelize.done(module) then
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
  mh._trees.parallelize_module(module, mesh, plan, {src_data_rank = options.src_data_rank,
    unmatched = options.unmatched, is_model_sharded = options.is_model_sharded}, factory,
    function(number, one, on) custom[number]:apply(one, on) end, #custom)
  return module
end

--- Returns what parallelize_module did to this very module: {mesh =, plan =, custom =}, nil when it did nothing.
parallelize.done = tree.parallelized

--- mh.expert_parallel(...) -> nothing
---   Always an error: no operator sends tokens to the ranks of their experts. Keep the experts in one parameter
---   [experts, ...] and cut its dim 0.
---   returns     nothing
---   collective  no
---   errors      ValueError: always
---   example
---     (pcall(mh.expert_parallel))    --> false
function parallelize.expert_parallel(...)  -- luacheck: ignore
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
    fail(("distribute_module: expected a mesh\n  have  %s\n" ..
      "  fix   mh.distribute_module(net, mh.init_device_mesh(\"cpu\", {%d}))"):format(
      mh._describe(mesh), mh.world_size()))
  end
  for name, fn in pairs {partition = partition, input = input, output = output} do
    if fn ~= nil then arguments.callable("distribute_module", name, fn) end
  end
  mh._trees.distribute_module(module, mesh, partition)
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
