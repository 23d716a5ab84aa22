-- SPDX-License-Identifier: Apache-2.0
-- mh.parallelize: a policy looks at a module and says how to divide it; the plan is kept, and carried out.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local cache = require "moonhalo.policy.plan_cache"
local compute_config = require "moonhalo.policy.compute_config"
local division = require "moonhalo.policy.division"
local plural = require "moonhalo.internal.plural"
local check_placements = require "moonhalo.policy.check"
local policies = require "moonhalo.policy.policies"
local policy_graph = require "moonhalo.policy.graph"
local search = require "moonhalo.policy.search"
local tree = require "moonhalo.internal.module_tree"

local fail, is_module = mh.fail, base.is_module

-- ---- Options --------------------------------------------------------------------------------------------------------

local kDefaults = {
  gen_savedir = mh.none, reuse = "match", instance_name = mh.none, load_module = true, module_dtype = mh.none,
  module_fn = mh.none, init_module_params = true, broadcast_strategy = "all",
}
local kStrategies = {"all", "code", "no_weights", "none"}

local function read_options(given)
  local names, options = {}, {}
  for name, default in pairs(kDefaults) do
    names[#names + 1] = name
    if default ~= mh.none then options[name] = default end
  end
  table.sort(names)
  for name, value in pairs(arguments.options("parallelize", given)) do
    options[arguments.choice("parallelize", "option", name, names)] = value
  end
  arguments.choice("parallelize", "reuse", options.reuse, cache.modes)
  arguments.choice("parallelize", "broadcast_strategy", options.broadcast_strategy, kStrategies)
  for _, name in ipairs {"gen_savedir", "instance_name"} do
    if options[name] ~= nil and (type(options[name]) ~= "string" or options[name] == "") then
      fail(("parallelize: %s is a string, got %s"):format(name, mh._describe(options[name])))
    end
  end
  return options
end

local function check_policy(policy)
  if type(policy) == "function" then
    if debug.getinfo(policy, "S").what == "C" then
      fail("parallelize: a policy is a function of Lua, got one of C++")
    end
    return policy
  end
  return arguments.choice("parallelize", "policy", policy, policies.names)
end

-- ---- Modules --------------------------------------------------------------------------------------------------------

local function is_class(value) return type(value) == "table" and rawget(value, "instance_meta") ~= nil end

--- Parameters in the place of deferred ones that are one number, repeated: only the blocks that are kept of them will
--- ever have memory.
local function empty_parameters(module)
  local made = {}
  local function like(tensor)
    local one = mh.zeros({}, {dtype = tensor.dtype, device = tensor.device})
    return base.Parameter(one:expand(tensor.shape), tensor.requires_grad)
  end
  for _, one in module:named_modules() do
    for name, tensor in one._parameters do
      if tensor:is_deferred() then
        made[tensor] = made[tensor] or like(tensor)
        one._parameters[name] = made[tensor]
      end
    end
  end
end

--- Makes a use before loading visible.
local function fill_with_nan(module)
  mh.no_grad(function()
    for _, parameter in ipairs(module:parameters()) do parameter:fill_(0 / 0) end
  end)
end

--- The module that `make()` gives, in the dtype and with the values that the options ask for.
local function construct(make, options)
  local function build()
    local module = make()
    if not is_module(module) then
      fail("parallelize: the constructor gave no nn.Module but " .. mh._describe(module))
    end
    return options.module_dtype and module:to(options.module_dtype) or module
  end
  if options.init_module_params then return build() end
  return mh.deferred_init(build, {min_numel = 0})
end

-- ---- Plans ----------------------------------------------------------------------------------------------------------

--- Multiplications and elements of parameters of each of module:stages(), in order, and node.stage, the number of the
--- stage that has it; nil for modules without.
local function count_stages(module, nodes)
  if not module:has("stages") then return nil end
  local stage_of, macs, elements = {}, {}, {}
  for i, stage in ipairs(module:stages()) do
    macs[i], elements[i] = 0, 0
    for _, one in stage:named_modules() do stage_of[one] = stage_of[one] or i end
    for _, parameter in ipairs(stage:parameters()) do elements[i] = elements[i] + parameter:numel() end
  end
  for _, node in ipairs(nodes) do
    local one = module
    for part in node.module:gmatch("[^.]+") do one = one and one._modules[part] end
    local i = one and stage_of[one]  -- no module where a forward made it again
    if i then macs[i] = macs[i] + node.macs end
    node.stage = i
  end
  return macs, elements
end

local function trace(module, dummy)
  local graph = policy_graph.trace(module, dummy)
  graph.class, graph.stage_macs, graph.stage_elements = module:class_name(), count_stages(module, graph.nodes)
  return graph
end

local function key_of(module, dummy, policy, config, options)
  local kinds = {}
  for name, one in module:named_modules() do kinds[name == "" and "(root)" or name] = one:class_name() end
  return {
    model = {
      arguments = policy_graph.describe_arguments(dummy), tensors = policy_graph.describe_tensors(module),
    modules = kinds, },
    policy = cache.name_of(policy), config = compute_config.facts(config, policy), module_dtype = options.module_dtype,
  }
end

--- Digits that stand for the contents of the machine's file, and the backend of the search; nil for plans that do not
--- depend on a machine. Collective.
local function machine_of(policy, config)
  local options = policy == "autodist" and config.pas_config or {}
  if type(options.machine) ~= "string" then return nil end
  return mh._key_of_search{machine = options.machine, backend = type(options.backend) == "string" and options.backend
    or nil, ranks = config.plan_ngpus, units = config.units}
end

local function make_plan(module, dummy, policy, config, graph)
  graph = graph or trace(module, dummy)
  local name, placed, report = policy, nil, nil
  if policy == "autodist" then
    placed, report = search.autodist(module, dummy, graph, config)
  elseif type(policy) == "string" then
    placed = policies.builtin[policy](graph, config)
  else
    name, placed = "of the user's", policy(graph, config)
  end
  return check_placements(name, placed, graph, config, module), graph, report
end

--- The plan: from the disk where the options say so, else made by the policy on all ranks, of which rank 0's counts.
local function plan_for(module, dummy, policy, config, options)
  policy_graph.arguments(module, dummy)  -- whatever there is on the disk
  local shared = options.broadcast_strategy ~= "none"
  local key, path = key_of(module, dummy, policy, config, options), nil
  local found = {}
  if options.gen_savedir then
    path = cache.path(options.gen_savedir, module:class_name(), options.instance_name)
    key.machine, key.backend = machine_of(policy, config)
    found = cache.find(path, key, options.reuse, shared)
  end
  if found.plan then return found.plan, false end
  local plan, graph, report = make_plan(module, dummy, policy, config, found.graph)
  if shared then plan = mh.json.decode(mh._files.on_first_rank(function() return mh.json.encode(plan) end)) end
  cache.forget_written(key, policy)
  if path then cache.write(path, key, plan, graph) end
  return plan, true, report
end

--- The stages and loss() of a module must be its forward, or it would train something else.
local function check_stages_are_forward(module, dummy)
  local values, names = policy_graph.arguments(module, dummy)
  policies.check_pipeline(module, names)
  local sample = values[1]
  local whole, staged = policy_graph.evaluated(module, function()
    local handed = mh.is_tensor(sample) and {sample, n = 1} or {table.unpack(sample)}
    local results = table.pack(table.unpack(handed))
    for i, stage in ipairs(module:stages()) do
      if i == 1 then stage = tree.taking_inputs(stage) end
      results = table.pack(stage(table.unpack(results, 1, results.n)))
    end
    results.n = results.n + 1
    results[results.n] = sample
    return module(sample), module:loss(table.unpack(results, 1, results.n))
  end)
  if not mh.allclose(whole, staged, 1e-4, 1e-6) then
    local class = module:class_name()
    fail(("parallelize: %s:stages() and %s:loss() give %s for the dummy arguments, forward gives %s"):format(class,
      class, staged:item(), whole:item()))
  end
end

-- ---- parallelize ----------------------------------------------------------------------------------------------------

local function check_ranks(config, options)
  if options.load_module and config.runtime_ngpus ~= mh.world_size() then
    fail(("parallelize: runtime_ngpus = %d, the run has %s\n" ..
        "  fix   run with --ranks %d, or load_module = false to plan "
      .. "only"):format(config.runtime_ngpus, plural(mh.world_size(), "rank"), config.runtime_ngpus))
  end
end

local function parallelize_made(module, dummy, policy, config, options)
  local plan, planned, report = plan_for(module, dummy, policy, config, options)
  if not options.load_module then return plan, report end
  local _, names = policy_graph.arguments(module, dummy)
  if plan.stages and options.init_module_params then check_stages_are_forward(module, dummy) end
  if not options.init_module_params then empty_parameters(module) end
  local equal_already = options.broadcast_strategy ~= "all" or not options.init_module_params
  division.apply(module, plan, config, names, not equal_already and 0, compute_config.macs_per_byte(config, policy))
  if not options.init_module_params then fill_with_nan(module) end
  module.parallel.planned, module.parallel.report = planned, report
  return module
end

--- mh.parallelize(module, dummy, policy, config, options = nil) -> Module
---   Divides a model over the ranks of a run as a policy says, and trains it in units: the ranks of a unit get the same
---   plain tensors, other units their own. What is the same for all samples is marked by mh.constant. module.parallel
---   then has mesh, config, plan, report and pipeline.
---   module      Module|Class|function   a module, which is divided in place, or what makes one: then the result is a
---     function that makes divided modules
---   dummy       table       arguments of forward by name; the policy sees one forward of them on plain tensors
---   policy      string|function   "dp", "data", "tp", "pp", "hybrid", "autodist", or function(graph, config) that
---     returns placements
---   config      ComputeConfig   how the run uses its ranks
---   options     table?      {gen_savedir: a folder where plans are kept; reuse = "match"|"moo"|"override"|"graph";
---     instance_name; load_module = true; module_dtype; module_fn; init_module_params = true; broadcast_strategy =
---     "all"|"code"|"no_weights"|"none"}
---   returns     Module      module itself
---   collective  over all ranks
---   errors      ValueError: an unknown policy or option, or a config of another number of ranks
---   example
---     local config = mh.ComputeConfig{plan_ngpus = mh.world_size()}
---     local net = mh.parallelize(nn.Linear(4, 6), {x = mh.zeros{2, 4}}, "tp", config)
---     net(mh.ones{2, 4}).shape    --> {2, 6}
local function parallelize(module, dummy, policy, config, given)
  local options = read_options(given)
  policy = check_policy(policy)
  if not compute_config.is_config(config) then
    fail("parallelize: expected a ComputeConfig, got " .. mh._describe(config))
  end
  check_ranks(config, options)
  if is_module(module) then
    if rawget(module, "parallel") then
      fail(("parallelize: this %s was parallelized before\n  fix   give another instance of its class"):format(
          module:class_name()))
    end
    for _, name in ipairs {"module_fn", "init_module_params"} do
      if options[name] ~= (kDefaults[name] == true or nil) then
        fail(("parallelize: %s is for classes, and this is a %s already"):format(name, module:class_name()))
      end
    end
    local dtype = options.module_dtype
    return parallelize_made(dtype and module:to(dtype) or module, dummy, policy, config, options)
  end
  if not is_class(module) and type(module) ~= "function" then
    fail("parallelize: expected an nn.Module, its class or a constructor, got "
      .. mh._describe(module))
  end
  local function factory(...)
    local values = table.pack(...)
    local make = options.module_fn or function() return module(table.unpack(values, 1, values.n)) end
    return parallelize_made(construct(make, options), dummy, policy, config, options)
  end
  if options.module_fn or not options.load_module then return factory() end
  return factory
end

return {
  parallelize = parallelize, ComputeConfig = compute_config.ComputeConfig,
  broadcast_weights = division.broadcast_weights,
}
