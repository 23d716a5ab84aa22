-- SPDX-License-Identifier: Apache-2.0
-- States of PyTorch's optimizers for the optimizers here: parameters by number from 0 become positions from 1.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

--- Options of PyTorch's that say how a step is computed, not what.
local kHow = {foreach = true, fused = true, capturable = true, differentiable = true, params = true, param_names = true,
  initial_lr = true}

local function refuse(problem, have, fix)
  mh.fail(("checkpoint.import_optimizer: %s\n  have  %s\n  fix   %s"):format(problem, have, fix))
end

local function number_of(value) return mh.is_tensor(value) and value:item() or value end

--- The options of one group, of which `own` are those of the optimizer here.
local function options_of(name, group, own)
  local options = {}
  for key, value in pairs(group) do
    value = number_of(value)
    if key == "decoupled_weight_decay" then
      if value ~= (name == "AdamW") then
        refuse("the state is that of another optimizer",
          ("decoupled_weight_decay = %s, the optimizer is %s"):format(value, name),
          "make mh.optim." .. (value and "AdamW" or "Adam"))
      end
    elseif own[key] ~= nil then
      options[key] = value
    elseif value and not kHow[key] then
      refuse(("%s here has no option '%s'"):format(name, key), ("%s = %s"):format(key, tostring(value)),
        "train with an optimizer that has it, or remove it from the state")
    end
  end
  return options
end

--- The parameters of the optimizer in its order, and where each is by identity.
local function parameters_of(optimizer)
  local list, position = {}, {}
  for _, group in ipairs(optimizer.param_groups) do
    for _, parameter in ipairs(group.params) do
      list[#list + 1] = parameter
      position[mh._checkpoint_files.identity(parameter)] = #list
    end
  end
  return list, position
end

--- number of PyTorch's from 0 -> position here
local function positions_of(given, list, position, options)
  local numbers, where, used = {}, {}, {}
  for _, group in ipairs(given.param_groups) do
    for _, number in ipairs(group.params) do numbers[#numbers + 1] = number end
  end
  if #numbers ~= #list then
    refuse("the state is that of other parameters", ("%d in the state, %d in the optimizer"):format(#numbers, #list),
      "make the optimizer of the same parameters")
  end
  local named = options.names and options.module:named_parameters()
  for i, number in ipairs(numbers) do
    where[number] = i
    if options.names then
      local name = options.names[number + 1]
      local parameter = type(name) == "string" and named[name]
      where[number] = parameter and position[mh._checkpoint_files.identity(parameter)]
      if not where[number] or used[where[number]] then
        refuse(("parameter %d of the state is not one of the optimizer, or named twice"):format(number),
          "the name " .. mh._describe(name), "give the names of all parameters in PyTorch's order")
      end
      used[where[number]] = true
    end
  end
  return where
end

local function check(optimizer, given, options)
  if not mh._is_optimizer(optimizer) then
    refuse("the first argument is not an optimizer", mh._describe(optimizer), "give one of mh.optim")
  end
  local function has(key) return type(given) == "table" and type(rawget(given, key)) == "table" end
  if not has "state" or not has "param_groups" then
    refuse("not a state_dict() of an optimizer of PyTorch", mh._describe(given),
      "give mh.load(path) of a saved optimizer.state_dict(), or the entry of a checkpoint that holds it")
  end
  if optimizer.name == "LBFGS" then
    refuse("states of LBFGS are not read", "LBFGS", "let it start again from the loaded parameters")
  end
  if type(options) ~= "table" then
    refuse("options are a table", mh._describe(options), "give {names = list, module = net}")
  end
  for key in pairs(options) do
    arguments.choice("checkpoint.import_optimizer", "option", key, {"module", "names"})
  end
  if options.names ~= nil and type(options.names) ~= "table" then
    refuse("names are a list", mh._describe(options.names), "give {names = list, module = net}")
  end
  if options.names and not mh.nn.is_module(options.module) then
    refuse("names need the module that has these parameters", "module = " .. mh._describe(options.module),
      "give {names = list, module = net}")
  end
  if #given.param_groups ~= #optimizer.param_groups then
    refuse("the state has other groups of parameters",
      ("%d in the state, %d in the optimizer"):format(#given.param_groups, #optimizer.param_groups),
      "make the optimizer with the same groups")
  end
end

--- mh.checkpoint.import_optimizer, which checkpoint.lua describes.
return function(optimizer, given, options)
  options = options or {}
  check(optimizer, given, options)
  local list, position = parameters_of(optimizer)
  local where, own = positions_of(given, list, position, options), optimizer:state_dict()
  local state = {name = own.name, param_groups = {}, state = {}}
  for i in ipairs(list) do state.state[i] = {} end
  for i, group in ipairs(given.param_groups) do
    state.param_groups[i] = options_of(own.name, group, own.param_groups[i])
    state.param_groups[i].params = own.param_groups[i].params
  end
  for number, entry in pairs(given.state) do
    local place = where[number]
    if not place then
      refuse("the state has a parameter that is in no group", "number " .. tostring(number), "save it again")
    end
    if type(entry) ~= "table" then
      refuse(("the state of parameter %s is not a table"):format(number), mh._describe(entry), "save it again")
    end
    for key, value in pairs(entry) do
      local facts = mh._pt.facts(value)
      if key == "step" then
        value = math.tointeger(number_of(value))
      elseif facts and table.concat(facts.shape, " ") == table.concat(list[place].shape, " ") then
        value = mh._pt.read_for(value, list[place])
      end
      state.state[place][key] = value
    end
  end
  optimizer:load_state_dict(state)
end
