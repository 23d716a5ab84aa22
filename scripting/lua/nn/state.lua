-- SPDX-License-Identifier: Apache-2.0
-- state_dict and load_state_dict of modules, with the names that PyTorch gives.

local mh = require "moonhalo"
local ordered_map = require "moonhalo.internal.ordered_map"

local fail, is_tensor = mh.fail, mh.is_tensor
local state = {}

--- `visit(path, module)` under every name, so twice for a module that is registered twice. A module inside of itself is
--- left out there.
local function walk_names(self, path, above, visit)
  if above[self] then return end
  above[self] = true
  visit(path, self)
  for name, child in self._modules do walk_names(child, path .. name .. ".", above, visit) end
  above[self] = nil
end

--- Parameters and persistent buffers by dotted name, detached, sharing memory with the module. What is registered under
--- two names is there under both, as in PyTorch.
function state.state_dict(self)
  local found = ordered_map()
  walk_names(self, "", {}, function(path, module)
    for name, tensor in module._parameters do found[path .. name] = tensor:detach() end
    for name, tensor in module._buffers do
      if not module._volatile[name] then found[path .. name] = tensor:detach() end
    end
  end)
  return found
end

local function listed(names) return "'" .. table.concat(names, "', '") .. "'" end

local function refuse_state(self, problem)
  fail(("%s: load_state_dict: %s\n" ..
      "  fix   give what state_dict() or mh.safetensors.load(path) returned, or a table {name = tensor}")
    :format(self:class_name(), problem))
end

--- The tensors of `given` by name, and all names sorted. Lists of {name, tensor} are what mh.safetensors.load gives.
local function read_state(self, given)
  if type(given) ~= "table" then
    refuse_state(self, "wanted tensors by name, got " .. mh._describe(given))
  end
  local tensors, names = {}, {}
  local function add(name, tensor)
    if type(name) ~= "string" then refuse_state(self, "names are texts, got " .. mh._describe(name)) end
    if not is_tensor(tensor) then
      refuse_state(self, ("'%s' is no tensor but %s"):format(name, mh._describe(tensor)))
    end
    tensors[name], names[#names + 1] = tensor, name
  end
  if #given > 0 and not getmetatable(given) then
    for i, entry in ipairs(given) do
      if type(entry) ~= "table" or getmetatable(entry) then
        refuse_state(self, ("element %d of the list is no {name, tensor} but %s"):format(i, mh._describe(entry)))
      end
      add(entry[1], entry[2])
    end
  else
    for name, tensor in pairs(given) do add(name, tensor) end
  end
  table.sort(names)
  return tensors, names
end

--- safetensors files name each tensor once and tell in their metadata which other names it has.
local function add_second_names(tensors, own, metadata)
  for name in own do
    local first = metadata and metadata[name]
    if tensors[name] == nil and first ~= nil then tensors[name] = tensors[first] end
  end
end

local kFixState = "\n  fix   make the module as it was when the state was saved, or give {strict = false}, which " ..
    "passes over other names"

--- The module's own tensors and those of `given` by name, and the result of load_state_dict; an error for what does not
--- fit. `same_dtype`: also dtypes must be the module's.
local function check_state(self, given, options, same_dtype)
  if options ~= nil and type(options) ~= "table" then
    refuse_state(self, "options are a table, got " .. mh._describe(options))
  end
  local own, result, problems = self:state_dict(), {missing_keys = {}, unexpected_keys = {}}, {}
  local tensors, given_names = read_state(self, given)
  add_second_names(tensors, own, options)
  local names = {}
  for name in own do
    names[#names + 1] = name
    if tensors[name] == nil then table.insert(result.missing_keys, name) end
  end
  for _, name in ipairs(given_names) do
    if own[name] == nil then table.insert(result.unexpected_keys, name) end
  end
  if not options or options.strict ~= false then
    if #result.missing_keys > 0 then problems[#problems + 1] = "missing keys: " .. listed(result.missing_keys) end
    if #result.unexpected_keys > 0 then
      problems[#problems + 1] = "unexpected keys: " .. listed(result.unexpected_keys)
        .. mh.did_you_mean(result.unexpected_keys[1], names)
    end
  end
  for name, target in own do
    local value = tensors[name]
    if value ~= nil and table.concat(target.shape, ", ") ~= table.concat(value.shape, ", ") then
      problems[#problems + 1] = ("'%s' has shape [%s], the module's is [%s]"):format(name,
        table.concat(value.shape, ", "), table.concat(target.shape, ", "))
    elseif value ~= nil and value:is_complex() and not target:is_complex() then
      problems[#problems + 1] = ("'%s' is %s, the module's %s has no imaginary parts"):format(name, value.dtype,
          target.dtype)
    elseif same_dtype and value ~= nil and value.dtype ~= target.dtype then
      problems[#problems + 1] = ("'%s' is %s, the module's is %s; strict = false casts"):format(name, value.dtype,
          target.dtype)
    end
  end
  if #problems > 0 then
    fail(self:class_name() .. ": load_state_dict: " .. table.concat(problems, "\n  also  ") .. kFixState)
  end
  return own, tensors, result
end

--- Copies values into parameters and buffers. `given`: tensors by name, or the list that mh.safetensors.load gives
--- (whose metadata may follow). Options: strict (default true: names must be the same ones). Returns
--- {missing_keys = list, unexpected_keys = list}.
function state.load_state_dict(self, given, options)
  local own, tensors, result = check_state(self, given, options)
  mh.no_grad(function()
    for name, target in own do
      if tensors[name] ~= nil then target:copy_(tensors[name]) end
    end
  end)
  return result
end

--- The module's own tensors and those of `given` by name, and the result of load_state_dict, which this does not
--- change.
function state.check(self, given, options) return check_state(self, given, options) end

--- For checkpoints, whose tensors are still on the disk: `given` says what they are (device "meta"). Returns the
--- module's tensors and those given, by name.
function state.check_saved(self, given, options) return check_state(self, given, options, options.strict ~= false) end

return state
