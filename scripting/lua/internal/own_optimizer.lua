-- SPDX-License-Identifier: Apache-2.0
-- Optimizers whose step is written in Lua (optim/rules.lua), with all that those of C++ have: groups, sums of gradients
-- over ranks, states by position. An SGD of the same parameters sums and clips; it never steps.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local checks = require "moonhalo.internal.field_checks"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local own = {}
local own_optimizers = require("moonhalo.internal.registries").own_optimizers

local is_built_in = mh._is_optimizer
rawset(mh, "_is_optimizer", function(value) return own_optimizers[value] == true or is_built_in(value) end)

-- ---- Options ------------------------------------------------------------------------------------------------------

local kSigned = {beta2_decay = true, ns_coefficients = true}

local function check_number(name, key, value)
  if type(value) ~= "number" then
    fail(("%s: option '%s' is %s, expected a number"):format(name, key, mh._describe(value)))
  end
  if value ~= value then fail(("%s: option '%s' is nan, expected a number"):format(name, key)) end
  if not (value >= 0) and not kSigned[key] then
    fail(("%s: option '%s' is %s, it must not be negative"):format(name, key, value))
  end
end

--- The value of an option as the rule's own default is, or an error.
local function checked(name, rule, key, value)
  local default = rule.options[key]
  local choices = rule.choices and rule.choices[key]
  if choices then return arguments.choice(name, key, value, choices) end
  if type(default) == "table" then
    if type(value) ~= "table" or getmetatable(value) or #value ~= #default then
      fail(("%s: option '%s' is %s, expected %d numbers"):format(name, key, mh._describe(value), #default))
    end
    for _, one in ipairs(value) do
      if type(one) ~= "number" then
        fail(("%s: option '%s' is %s, expected %d numbers"):format(name, key, mh._describe(value), #default))
      end
      check_number(name, key, one)
      if key == "betas" and one >= 1 then
        fail(("%s: option 'betas' holds %s, expected 0 <= beta < 1"):format(name, one))
      end
    end
    return {table.unpack(value)}
  end
  if key == "eps1" then
    if value ~= false then check_number(name, key, value) end
  elseif type(default) == "boolean" then
    if type(value) ~= "boolean" then
      fail(("%s: option '%s' is %s, expected true or false"):format(name, key, mh._describe(value)))
    end
  else
    check_number(name, key, value)
    if key == "beta2_decay" and value > 0 then
      fail(("%s: option 'beta2_decay' is %s, it must not be above 0"):format(name, value))
    end
  end
  return value
end

local function check_known(what, rule, key)
  if rule.options[key] ~= nil then return end
  local known = sorted_keys(rule.options)
  fail(("%s '%s'%s\n  have  params, %s"):format(what, tostring(key), mh.did_you_mean(tostring(key), known),
      table.concat(known, ", ")))
end

-- ---- Groups -------------------------------------------------------------------------------------------------------

local function check_parameters(name, rule, list)
  if mh.is_tensor(list) then list = {list} end
  if not arguments.is_list(list) or (#list == 0 and next(list) ~= nil) then
    fail(("%s: expected a list of parameters, got %s\n  fix   %s(net:parameters(), {lr = 1e-3})"):format(name,
        mh._describe(list), name))
  end
  if #list == 0 then fail(name .. ": the list of parameters is empty") end
  arguments.list(name, "a list of parameters", list)
  for i, p in ipairs(list) do
    if not mh.is_tensor(p) then fail(("%s: parameter %d is %s, expected a tensor"):format(name, i, mh._describe(p))) end
    if not p.is_leaf then
      fail(("%s: parameter %d is the result of an operation, only leaves can be trained"):format(name, i))
    end
    if rule.matrices and p.ndim ~= 2 then
      fail(("%s: parameter %d has shape [%s], it trains matrices only\n" ..
          "  fix   give the others to AdamW: two optimizers, each with its parameters"):format(name, i,
              table.concat(p.shape, ", ")))
    end
    if rule.real and p:is_complex() then
      fail(("%s: parameter %d is complex\n  fix   train mh.view_as_real of it, or take another optimizer"):format(name,
          i))
    end
  end
  return {table.unpack(list)}
end

local function new_group(name, rule, given, defaults)
  local values = {}
  for key, default in pairs(defaults) do values[key] = checked(name, rule, key, default) end
  for key, value in pairs(given) do
    if key ~= "params" then
      check_known(name .. ": unknown option", rule, key)
      values[key] = checked(name, rule, key, value)
    end
  end
  if given.params == nil then fail(name .. ": a parameter group has no 'params'") end
  local params = check_parameters(name, rule, given.params)
  return setmetatable({}, {
    __name = "ParamGroup",
    __index = function(_, key)
      if key == "params" then return {table.unpack(params)} end
      check_known("ParamGroup: " .. name .. " has no option", rule, key)
      local value = values[key]
      return type(value) == "table" and {table.unpack(value)} or value
    end,
    __newindex = function(_, key, value)
      if key == "params" then fail("ParamGroup: the parameters of a group cannot be replaced") end
      check_known("ParamGroup: " .. name .. " has no option", rule, key)
      values[key] = checked(name, rule, key, value)
    end,
  }), values, params
end

-- ---- Optimizers ---------------------------------------------------------------------------------------------------

local Optimizer = {}
local meta = strict.class {name = "Optimizer", methods = Optimizer,
  fields = "name param_groups _rule _defaults _values _params _state _sums",
  checks = {name = checks.fixed("name", "make another optimizer"),
    param_groups = checks.fixed("param_groups", "opt:add_param_group{params = ..., lr = ...} adds one")}}

local function checked_group(self, given)
  local group, values, params = new_group(self.name, self._rule, given, self._defaults)
  local seen = {}
  for _, list in ipairs(self._params) do
    for _, p in ipairs(list) do seen[p] = true end
  end
  for _, p in ipairs(params) do
    if seen[p] then
      fail(("%s: a parameter is given twice\n  have  shape [%s]"):format(self.name, table.concat(p.shape, ", ")))
    end
    seen[p] = true
  end
  return group, values, params
end

local function append(self, group, values, params)
  table.insert(self.param_groups, group)
  table.insert(self._values, values)
  table.insert(self._params, params)
end

--- The optimizer `name` of the rule, called as those of C++ are.
function own.maker(name, rule)
  return function(parameters, options)
    if options ~= nil and not arguments.is_options(options) then
      fail(("%s: the options are a table, got %s"):format(name, mh._describe(options)))
    end
    local defaults = {}
    for key, value in pairs(rule.options) do defaults[key] = value end
    for key, value in pairs(options or {}) do
      check_known(name .. ": unknown option", rule, key)
      defaults[key] = checked(name, rule, key, value)
    end
    local self = strict.object(meta, {name = name, param_groups = {}, _rule = rule, _defaults = defaults, _values = {},
      _params = {}, _state = {}}, {"name", "param_groups", "_rule", "_defaults", "_values", "_params", "_state"})
    own_optimizers[self] = true
    local grouped = arguments.is_list(parameters) and type(parameters[1]) == "table"
        and not mh.is_tensor(parameters[1])
    if grouped then arguments.list(name, "a list of groups of parameters", parameters) end
    for _, given in ipairs(grouped and parameters or {{params = parameters == nil and mh.none or parameters}}) do
      append(self, checked_group(self, given))
    end
    local all = {}
    for _, list in ipairs(self._params) do
      for _, p in ipairs(list) do all[#all + 1] = p end
    end
    self._sums = mh.make_optimizer("SGD", all, {lr = 0.0})
    return self
  end
end

local function pairs_of(x) return x:is_complex() and mh.view_as_real(x) or x end

--- The state of a parameter before its first step: of a complex one complex, of pairs of reals.
local function start(rule, p, values)
  p = p:detach()
  local state = rule.start(pairs_of(p), values)
  if not p:is_complex() then return state end
  for key, value in pairs(state) do
    if mh.is_tensor(value) then state[key] = mh.view_as_complex(value) end
  end
  return state
end

local function update(self, p, values)
  local rule, gradient = self._rule, p.grad
  if not gradient then return end
  local state = self._state[p]
  if not state then
    state = start(rule, p, values)
    self._state[p] = state
  end
  local target, real = p:detach(), state
  if p:is_complex() then
    target, gradient, real = pairs_of(target), pairs_of(gradient), {}
    for key, value in pairs(state) do real[key] = mh.is_tensor(value) and pairs_of(value) or value end
  end
  rule.step(target, values.maximize and -gradient or gradient, real, values)
  if real == state then return end
  for key, value in pairs(real) do
    if not mh.is_tensor(value) then state[key] = value end
  end
end

local function step(self, closure)
  local loss
  if closure ~= nil then
    if type(closure) ~= "function" then
      fail("step: the closure is " .. mh._describe(closure) .. ", expected a function")
    end
    loss = mh.enable_grad(closure)
    if not mh.is_tensor(loss) then
      fail("step: the closure returned " .. mh._describe(loss) .. ", expected the loss")
    end
  end
  self._sums:sync_shard_grad()
  mh.no_grad(function()
    for g, params in ipairs(self._params) do
      for _, p in ipairs(params) do update(self, p, self._values[g]) end
    end
  end)
  return loss
end

function Optimizer:step(closure) return mh._record_optimizer(step, self, closure) end

for _, method in ipairs {"zero_grad", "sync_shard_grad", "scale_grads", "clip_gnorm", "register_reducer_pre_hook",
    "register_reducer_post_hook"} do
  Optimizer[method] = function(self, ...) return self._sums[method](self._sums, ...) end
end

function Optimizer:add_param_group(group)
  if type(group) ~= "table" or getmetatable(group) then
    fail("add_param_group: expected {params = ..., lr = ...}, got " .. mh._describe(group))
  end
  local added, values, params = checked_group(self, group)
  self._sums:add_param_group{params = params}
  append(self, added, values, params)
end

--- As of the optimizers of C++: parameters by their position over all groups, tensors share memory.
function Optimizer:state_dict()
  local groups, state, position = {}, {}, 0
  for g, params in ipairs(self._params) do
    local group = {params = {}}
    for key, value in pairs(self._values[g]) do
      group[key] = type(value) == "table" and {table.unpack(value)} or value
    end
    for _, p in ipairs(params) do
      position = position + 1
      group.params[#group.params + 1] = position
      state[position] = {}
      for key, value in pairs(self._state[p] or {}) do state[position][key] = value end
    end
    groups[g] = group
  end
  return {name = self.name, param_groups = groups, state = state}
end

local function check_list(self, given, key, count, of)
  local list = type(given) == "table" and not getmetatable(given) and given[key]
  if type(list) ~= "table" then
    fail(("load_state_dict: '%s' is missing\n  fix   give what opt:state_dict() returned"):format(key))
  end
  if #list ~= count then
    fail(("load_state_dict: '%s' is of %d %s, the optimizer has %d"):format(key, #list, of, count))
  end
  return list
end

--- A copy of a saved tensor, placed as `like` of the state is. One of device "meta" says only what there is.
local function own_copy(value, like)
  local copy = mh.empty_like(like, {dtype = value.dtype})
  return value.device == "meta" and copy or mh.no_grad(copy.copy_, copy, value)
end

--- The groups' options and the parameters' states that load_state_dict takes over.
local function read_state(self, given)
  if type(given) ~= "table" or getmetatable(given) then
    fail("load_state_dict: expected the table of state_dict(), got " .. mh._describe(given))
  end
  local groups = check_list(self, given, "param_groups", #self.param_groups, "parameter groups")
  local parameters = {}
  for g, params in ipairs(self._params) do
    for _, p in ipairs(params) do parameters[#parameters + 1] = {p, self._values[g]} end
  end
  local state = check_list(self, given, "state", #parameters, "parameters")
  if given.name ~= nil and given.name ~= self.name then
    fail(("load_state_dict: the state is that of '%s', the optimizer is %s"):format(given.name, self.name))
  end
  local options, states = {}, {}
  for g, group in ipairs(groups) do
    options[g] = {}
    for key, value in pairs(group) do
      if key ~= "params" then
        check_known("load_state_dict: unknown option", self._rule, key)
        options[g][key] = checked("load_state_dict", self._rule, key, value)
      end
    end
  end
  for i, one in ipairs(parameters) do
    local saved, fresh = state[i], nil
    if type(saved) ~= "table" then
      fail(("load_state_dict: the state of parameter %d is %s, expected a table"):format(i, mh._describe(saved)))
    end
    if next(saved) ~= nil then
      fresh = start(self._rule, one[1], one[2])
      for key in pairs(saved) do
        if fresh[key] == nil then
          fail(("load_state_dict: unknown option '%s'%s"):format(tostring(key), mh.did_you_mean(tostring(key),
              sorted_keys(fresh))))
        end
      end
      for key, like in pairs(fresh) do
        local value = saved[key]
        local good = type(value) == type(like)
        if mh.is_tensor(like) then
          good = mh.is_tensor(value) and table.concat(value.shape, ",") == table.concat(like.shape, ",")
              and value:is_complex() == like:is_complex() and (value:is_floating_point() or value:is_complex())
        end
        if not good then
          fail(("load_state_dict: '%s' of parameter %d is %s, expected %s"):format(key, i, mh._describe(value),
            mh.is_tensor(like) and "a tensor of floating-point numbers of shape [" .. table.concat(like.shape, ", ")
                .. "]" or "a number"))
        end
        fresh[key] = mh.is_tensor(value) and own_copy(value, like) or value
      end
    end
    states[i] = {one[1], fresh}
  end
  return options, states
end

function Optimizer:load_state_dict(given)
  local options, states = read_state(self, given)
  for g, values in ipairs(options) do
    for key, value in pairs(values) do self._values[g][key] = value end
  end
  for _, one in ipairs(states) do self._state[one[1]] = one[2] end
end

--- The errors of load_state_dict, and nothing else.
function Optimizer:_check_state_dict(given) read_state(self, given) end

return own
