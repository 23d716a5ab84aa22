-- SPDX-License-Identifier: Apache-2.0
-- What dividing a module changes of it and of the modules below: fields, tensors, hooks and records. A search divides
-- one module in several ways, and leaves it as it was.

local registries = require "moonhalo.internal.registries"

local module_state = {}

local kTensors, kHooks = {"_parameters", "_buffers"}, {"_pre_hooks", "_hooks"}
local kRecords = {registries.record_of_module, registries.unit_of_module}

local function raw_copy(fields)
  local copy = {}
  for key, value in pairs(fields) do copy[key] = value end
  return copy
end

local function tensors_of(registry)
  local tensors = {}
  for name, tensor in registry do tensors[name] = tensor end
  return tensors
end

--- A module, those below it, and those of its stages, which may be wrappers that it keeps elsewhere; each once.
local function modules_of(module)
  local list, seen = {}, {}
  local function add(top)
    for _, one in top:named_modules() do
      if not seen[one] then list[#list + 1] = one end
      seen[one] = true
    end
  end
  add(module)
  for _, stage in ipairs(module:has("stages") and module:stages() or {}) do add(stage) end
  return list
end

--- The state of a module, of those below it, and of its stages.
function module_state.take(module)
  local states = {}
  for _, one in ipairs(modules_of(module)) do
    local state = {module = one, fields = raw_copy(one), records = {}}
    for _, name in ipairs(kTensors) do state[name] = tensors_of(rawget(one, name)) end
    for _, name in ipairs(kHooks) do state[name] = raw_copy(rawget(one, name)) end
    for i, records in ipairs(kRecords) do state.records[i] = records[one] end
    states[#states + 1] = state
  end
  return states
end

--- Gives the modules of `states` what they had then.
function module_state.put(states)
  for _, state in ipairs(states) do
    local one = state.module
    for key in pairs(raw_copy(one)) do rawset(one, key, state.fields[key]) end
    for key, value in pairs(state.fields) do rawset(one, key, value) end
    for _, name in ipairs(kTensors) do
      local registry = rawget(one, name)
      for key in pairs(tensors_of(registry)) do registry[key] = state[name][key] end
      for key, tensor in pairs(state[name]) do registry[key] = tensor end
    end
    for _, name in ipairs(kHooks) do
      local hooks = rawget(one, name)
      for i = math.max(#hooks, #state[name]), 1, -1 do hooks[i] = state[name][i] end
    end
    for i, records in ipairs(kRecords) do records[one] = state.records[i] end
  end
end

return module_state
