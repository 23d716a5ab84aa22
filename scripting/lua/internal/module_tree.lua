-- SPDX-License-Identifier: Apache-2.0
-- Lua modules as the engine sees them (engine/model/module_tree.h): functions on one module, for
-- bind/module_tree.cpp.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local base = require "moonhalo.nn.module"
local replaced = require "moonhalo.internal.forward"

local fail, is_tensor = mh.fail, mh.is_tensor
local tree = {}

local record_of_module = require("moonhalo.internal.registries").record_of_module

--- The class of a module and those that it extends.
function tree.kinds(module)
  local kinds, class = {module:class_name()}, module.super
  while class do
    kinds[#kinds + 1] = class.name
    class = rawget(class, "super")
  end
  return kinds
end

function tree.children(module)
  local names, modules = {}, {}
  for name, child in rawget(module, "_modules") do names[#names + 1], modules[#modules + 1] = name, child end
  return names, modules
end

--- Names, tensors, how many of them are parameters, and the names of those that several stages of a pipeline hold.
function tree.tensors(module)
  local names, tensors, parameters = {}, {}, nil
  for _, registry in ipairs {"_parameters", "_buffers"} do
    for name, tensor in rawget(module, registry) do names[#names + 1], tensors[#tensors + 1] = name, tensor end
    parameters = parameters or #names
  end
  return names, tensors, parameters, rawget(module, "_shared_by_stages") or {}
end

function tree.replace_tensor(module, name, tensor)
  if rawget(module, "_parameters")[name] ~= nil then
    rawget(module, "_parameters")[name] = base.as_parameter(tensor)
  else
    rawget(module, "_buffers")[name] = tensor
  end
end

--- Position of every named argument of the module's forward, their names, and whether more may come in a last table.
--- Modules that Python saved say the names themselves.
function tree.argument_names(module)
  local positions, names = {}, rawget(module, "_forward_names")
  if names then
    for i, name in ipairs(names) do positions[name] = i end
    return positions, names, names.open
  end
  local forward = replaced.written(module.forward)
  local info = debug.getinfo(forward, "u")
  local open = info.isvararg
  names = {}
  for i = 2, info.nparams do
    local name = debug.getlocal(forward, i)
    positions[name], names[#names + 1] = i - 1, name
    open = open or name == "options" or name == "kwargs"
  end
  return positions, names, open
end

--- The module whose forward gets the arguments of `module`.
local function innermost(module)
  local forward = mh.nn.Sequential.forward
  while module.forward == forward and #module > 0 do module = module[0] end
  return module
end

--- The first stage of a pipeline, which takes of a sample what its forward has arguments for: the others are for the
--- loss.
function tree.taking_inputs(stage)
  return function(...)
    local _, names, open = tree.argument_names(innermost(stage))
    if open then return stage(...) end
    return stage(table.unpack({...}, 1, math.min(select("#", ...), #names)))
  end
end

--- An error unless the module's forward has arguments of the names `required`.
function tree.check_arguments(module, path, wanted)
  local positions, names, open = tree.argument_names(module)
  for _, name in ipairs(wanted) do
    if not positions[name] and not open then
      fail(("parallelize_module: '%s' names '%s', forward has no such argument%s\n  have  %s"):format(
        path == "" and "input" or path .. ".input", name, mh.did_you_mean(name, names), table.concat(names, ", ")))
    end
  end
end

--- Arguments by position and by name; those by name may be in a last table of options.
local function run_before(hooks, positions, args)
  local named, options = {}, args[args.n]
  if not arguments.is_options(options) then options = {} end
  for name, value in pairs(options) do named[name] = is_tensor(value) and value or nil end
  for name, i in pairs(positions) do
    if i <= args.n and is_tensor(args[i]) then named[name] = args[i] end
  end
  local given = {}
  for name, value in pairs(named) do given[name] = value end
  hooks:before(args, args.n, named)
  for name, value in pairs(named) do
    local i = positions[name]
    if rawequal(value, given[name]) then
      -- unchanged
    elseif i and i <= args.n then
      args[i] = value
    else
      local copy = {}
      for key, one in pairs(args[args.n]) do copy[key] = one end
      copy[name] = value
      args[args.n] = copy
    end
  end
  return args
end

--- Results by position; a table of results may have names, too.
local function run_after(hooks, output)
  local function run(list, count)
    local named = {}
    for name, value in pairs(list) do
      if type(name) == "string" and is_tensor(value) then named[name] = value end
    end
    hooks:after(list, count, named)
    for name, value in pairs(named) do list[name] = value end
    return list
  end
  if type(output) ~= "table" or getmetatable(output) then return run({output, n = 1}, 1) end
  if output.n then return run(output, output.n) end
  local copy = {}
  for key, value in pairs(output) do copy[key] = value end
  return {run(copy, #copy), n = 1}
end

function tree.add_call_hooks(module, hooks)
  local added = {}
  if hooks:has_before() then
    local positions = tree.argument_names(module)
    added[1] = module:register_forward_pre_hook(function(_, args) return run_before(hooks, positions, args) end)
  end
  if hooks:has_after() then
    added[#added + 1] = module:register_forward_hook(function(_, _, output) return run_after(hooks, output) end)
  end
  return function()
    for _, hook in ipairs(added) do hook:remove() end
  end
end

function tree.wrap_forward(module, wrapper)
  return replaced.replace(module, function(forward)
    return function(...) return wrapper:call(forward, ...) end
  end)
end

function tree.parallelized(module) return record_of_module[module] end
function tree.set_parallelized(module, done) record_of_module[module] = done end

mh._trees.set_functions(tree)

return tree
