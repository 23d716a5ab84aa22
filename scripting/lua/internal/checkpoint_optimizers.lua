-- SPDX-License-Identifier: Apache-2.0
-- States of optimizers in checkpoints: by the names that parameters have in the modules saved beside them, so that
-- another order, or other groups of ranks, do not matter. A parameter of no module is named by its position: "#3".

local mh = require "moonhalo"
local stages = require "moonhalo.internal.checkpoint_stages"
local values = require "moonhalo.internal.checkpoint_values"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail, identity = mh.fail, mh._checkpoint_files.identity
local optimizers = {}

--- The names of an optimizer's parameters by position, and whether any module has one. Names that parameters of
--- several modules have get their entries' in front, all of them, so that no order decides; `plain`: by those, the
--- name alone. `modules`: list of {entry, module}.
local function names_of(optimizer, modules)
  local known, places, users, names, plain, found = {}, {}, {}, {}, {}, false
  for _, pair in ipairs(modules) do
    for name, parameter in pair[2]:named_parameters() do
      local id = identity(parameter)
      known[id] = known[id] or {pair[1], name}
    end
  end
  for _, group in ipairs(optimizer.param_groups) do
    for _, parameter in ipairs(group.params) do
      local place = known[identity(parameter)]
      places[#places + 1], found = place or false, found or place ~= nil
      if place then users[place[2]] = (users[place[2]] or 0) + 1 end
    end
  end
  for i, place in ipairs(places) do
    names[i] = place and (users[place[2]] > 1 and place[1] .. "/" .. place[2] or place[2]) or "#" .. i
    if place and users[place[2]] > 1 then plain[names[i]] = place[2] end
  end
  return names, found, plain
end

--- `names` as an earlier version wrote them: of parameters of one name the first in the optimizer had it without its
--- entry's. The others tell which one that is.
local function as_saved(names, plain, state)
  local missing, count = {}, {}
  for _, name in ipairs(names) do
    local short = plain[name]
    if short and state[short] ~= nil and state[name] == nil then
      missing[short], count[short] = name, (count[short] or 0) + 1
    end
  end
  local renamed = table.move(names, 1, #names, 1, {})
  for i, name in ipairs(names) do
    local short = plain[name]
    if short and count[short] == 1 and missing[short] == name then renamed[i] = short end
  end
  return renamed
end

--- The state of an optimizer for checkpoint.json; tensors are named "exp_avg/NAME".
function optimizers.pack(optimizer, modules, tensors)
  local pipe = stages.pipeline_of_optimizer(optimizer)
  if pipe then return stages.pack_optimizer(pipe, optimizer, tensors) end
  local dict, names, state = optimizer:state_dict(), names_of(optimizer, modules), {}
  for i, of_parameter in ipairs(dict.state) do
    state[names[i]] = {}
    for _, field in ipairs(sorted_keys(of_parameter)) do
      state[names[i]][field] = values.pack(of_parameter[field], field .. "/" .. names[i], tensors, 3)
    end
  end
  for _, group in ipairs(dict.param_groups) do
    for i, position in ipairs(group.params) do group.params[i] = names[position] end
  end
  return {name = dict.name, by = "name", param_groups = values.pack(dict.param_groups, "param_groups", tensors, 2),
      state = state}
end

--- The same with tensors of device "meta" for those of `state`.
function optimizers.described(state)
  local function describe(value)
    if mh.is_tensor(value) then return mh.empty(value.shape, {dtype = value.dtype, device = "meta"}) end
    if type(value) ~= "table" then return value end
    local copy = {}
    for key, one in pairs(value) do copy[key] = describe(one) end
    return copy
  end
  return describe(state)
end

optimizers.names = names_of

local function is_list(value) return type(value) == "table" and (next(value) == nil or #value > 0) end

--- The names as they were saved, by position.
local function saved_names(groups)
  local names = {}
  for _, group in ipairs(is_list(groups) and groups or {}) do
    for _, name in ipairs(type(group) == "table" and is_list(group.params) and group.params or {}) do
      names[#names + 1] = type(name) == "string" and name or nil
    end
  end
  return names
end

local function same_options(a, b)
  for _, pair in ipairs {{a, b}, {b, a}} do
    for key, value in pairs(pair[1]) do
      local other = pair[2][key]
      local same = type(value) == "table" and type(other) == "table"
          and table.concat(value, " ") == table.concat(other, " ")
      if key ~= "params" and value ~= other and not same then return false end
    end
  end
  return true
end

--- Returns the saved group of each of the optimizer's groups: the one that has its parameters, in whatever order groups
--- are.
local function groups_by_name(optimizer, names, saved)
  if not is_list(saved) or #saved ~= #optimizer.param_groups then return saved end  -- which is refused
  local group_of, groups, position = {}, {}, 0
  for g, group in ipairs(saved) do
    for _, name in ipairs(type(group) == "table" and is_list(group.params) and group.params or {}) do
      group_of[name] = g
    end
  end
  for g, group in ipairs(optimizer.param_groups) do
    local from, first
    for _ in ipairs(group.params) do
      position = position + 1
      local one = group_of[names[position]]
      if from and one and one ~= from and not same_options(saved[one], saved[from]) then
        fail(("load_state_dict: group %d of the optimizer has parameters of the saved groups %d ('%s') and %d " ..
            "('%s'), whose options differ"
          .. "\n  fix   make the groups that were saved"):format(g, from, first, one, names[position]))
      end
      if one and not from then from, first = one, names[position] end
    end
    groups[g] = saved[from or g]
  end
  return groups
end

--- Makes what load_state_dict of `optimizer` takes: states by position. With strict = false a parameter without a saved
--- state starts with none.
function optimizers.by_position(optimizer, modules, value, options)
  if type(value) ~= "table" or type(value.state) ~= "table" then return value end  -- which it refuses
  local names, found, pipe, plain = nil, true, stages.pipeline_of_optimizer(optimizer), nil
  if pipe then
    names = pipe:_names_of(optimizer)
  else
    names, found, plain = names_of(optimizer, modules)
    names = as_saved(names, plain, value.state)
  end
  if not found then
    local saved = saved_names(value.param_groups)
    if #saved ~= #names then
      fail(("load_state_dict: the state is of %d parameters, the optimizer has %d"):format(#saved, #names))
    end
    names = saved
  end
  local groups = found and groups_by_name(optimizer, names, value.param_groups) or value.param_groups
  local state, missing, left = {}, {}, {}
  for name, of_parameter in pairs(value.state) do left[name] = of_parameter end
  for i, name in ipairs(names) do
    state[i], left[name] = left[name], nil
    if state[i] == nil then
      missing[#missing + 1], state[i] = name, {}
    end
  end
  if pipe then
    for name in pipe:_whole_model():state_dict() do left[name] = nil end  -- of other stages
  end
  local more = sorted_keys(left)
  if options.strict ~= false and #missing + #more > 0 then
    local problem = #missing > 0 and ("no state of '%s'%s"):format(table.concat(missing, "', '"),
        mh.did_you_mean(missing[1], more))
      or ("the optimizer has no '%s'"):format(table.concat(more, "', '"))
    fail("load_state_dict: " .. problem
        .. "\n  fix   load it together with the modules saved beside it; with strict = false "
      .. "states of other parameters are left out, and what has none starts again")
  end
  return {name = value.name, param_groups = groups, state = state}
end

--- A saved entry as state_dict() of the optimizer would give it, where it is an optimizer's: for callers who load
--- without one and pass the state on themselves.
function optimizers.as_state_dict(value)
  if type(value) ~= "table" or value.by ~= "name" or type(value.state) ~= "table"
      or not is_list(value.param_groups) then
    return value
  end
  local state, count = {}, 0
  for _, group in ipairs(value.param_groups) do
    for i, name in ipairs(type(group) == "table" and is_list(group.params) and group.params or {}) do
      count = count + 1
      state[count], group.params[i] = value.state[name] or {}, count
    end
  end
  return {name = value.name, param_groups = value.param_groups, state = state}
end

return optimizers
