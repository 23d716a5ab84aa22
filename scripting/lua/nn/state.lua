-- SPDX-License-Identifier: Apache-2.0
-- state_dict and load_state_dict of modules, with the names that PyTorch gives.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local ordered_map = require "moonhalo.internal.ordered_map"
local pt = require "moonhalo.internal.pt"

local fail = mh.fail
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

local function refuse_rename(self, problem)
  fail(("%s: load_state_dict: rename is a list of {pattern, replacement} or a function: %s\n" ..
      "  fix   rename = {{\"^module%%.\", \"\"}}"):format(self:class_name(), problem))
end

--- The names of `given` changed by `rename`: a list of {pattern, replacement}, or a function that gives the new name,
--- or nil for a tensor to leave out.
local function new_name(self, rename, name)
  if rename == nil then return name end
  if type(rename) == "function" then
    local given = rename(name)
    if given ~= nil and type(given) ~= "string" then
      refuse_rename(self, ("gave %s for '%s'"):format(mh._describe(given), name))
    end
    return given
  end
  if type(rename) ~= "table" then refuse_rename(self, "got " .. mh._describe(rename)) end
  for i, pair in ipairs(rename) do
    if type(pair) ~= "table" or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
      refuse_rename(self, ("entry %d is %s"):format(i, mh._describe(pair)))
    end
    local good, changed = pcall(string.gsub, name, pair[1], pair[2])
    if not good then refuse_rename(self, ("entry %d, '%s': %s"):format(i, pair[1], changed)) end
    name = changed
  end
  return name
end

--- The tensors of `given` by (new) name, all names sorted, and what the tensors are (of those that are still in a file,
--- tensors of device "meta"). Lists of {name, tensor} are what mh.safetensors.load gives.
local function read_state(self, given, rename)
  if type(given) ~= "table" then
    refuse_state(self, "expected tensors by name, got " .. mh._describe(given))
  end
  local tensors, shapes, before, names = {}, {}, {}, {}
  local function add(name, tensor)
    if type(name) ~= "string" then refuse_state(self, "names are strings, got " .. mh._describe(name)) end
    local facts = mh._pt.facts(tensor)
    if not facts then refuse_state(self, ("'%s' is not a tensor but %s"):format(name, mh._describe(tensor))) end
    local old = name
    name = new_name(self, rename, old)
    if name == nil then return end
    if tensors[name] ~= nil then
      fail(("%s: load_state_dict: rename gives two tensors the name '%s'\n  have  '%s' and '%s'\n" ..
        "  fix   give a pattern that keeps them apart"):format(self:class_name(), name, before[name], old))
    end
    tensors[name], shapes[name], before[name], names[#names + 1] = tensor, facts, old, name
  end
  given = pt.state_of(given)
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
  return tensors, names, shapes
end

--- safetensors files name each tensor once and tell in their metadata which other names it has.
local function add_second_names(tensors, own, metadata)
  for name in own do
    local first = metadata and metadata[name]
    if tensors[name] == nil and first ~= nil then tensors[name] = tensors[first] end
  end
end

local kOptions = {"dtype", "rename", "strict"}

--- Options, and metadata of safetensors, which may be given in their place: it has strings alone.
local function read_options(self, options)
  if options == nil then return {} end
  if type(options) ~= "table" then refuse_state(self, "options are a table, got " .. mh._describe(options)) end
  local strings, known = true, true
  for key, value in pairs(options) do
    strings = strings and type(value) == "string"
    known = known and (key == "dtype" or key == "rename" or key == "strict")
  end
  if strings and not known then return {}, options end
  for key in pairs(options) do arguments.choice("load_state_dict", "option", key, kOptions) end
  if type(options.dtype) == "string" then
    fail(("load_state_dict: dtype is true (the same dtypes) or false (cast), got '%s'\n" ..
      "  fix   net:to('%s') changes the module's dtype"):format(options.dtype, options.dtype))
  end
  for _, name in ipairs {"dtype", "strict"} do
    if options[name] ~= nil then arguments.flag("load_state_dict", name, options[name]) end
  end
  return options
end

local kFixState = "\n  fix   make the module as it was when the state was saved"
local kFixNames = kFixState .. ", or give {strict = false}, which ignores missing and extra names"

--- The module's own tensors and those of `given` by name, and the result of load_state_dict; an error for what does not
--- fit. `same_dtype`: also dtypes must be the module's.
local function check_state(self, given, options, same_dtype)
  local metadata
  options, metadata = read_options(self, options)
  local own, result, problems = self:state_dict(), {missing_keys = {}, unexpected_keys = {}}, {}
  local tensors, given_names, facts = read_state(self, given, options.rename)
  add_second_names(tensors, own, metadata)
  add_second_names(facts, own, metadata)
  local names = {}
  for name in own do
    names[#names + 1] = name
    if tensors[name] == nil then table.insert(result.missing_keys, name) end
  end
  for _, name in ipairs(given_names) do
    if own[name] == nil then table.insert(result.unexpected_keys, name) end
  end
  if options.strict ~= false then
    if #result.missing_keys > 0 then problems[#problems + 1] = "missing keys: " .. listed(result.missing_keys) end
    if #result.unexpected_keys > 0 then
      problems[#problems + 1] = "unexpected keys: " .. listed(result.unexpected_keys)
        .. mh.did_you_mean(result.unexpected_keys[1], names)
    end
  end
  local of_names = #problems
  for name, target in own do
    local value = facts[name]
    if value ~= nil and table.concat(target.shape, ", ") ~= table.concat(value.shape, ", ") then
      problems[#problems + 1] = ("'%s' has shape [%s], the module's is [%s]"):format(name,
        table.concat(value.shape, ", "), table.concat(target.shape, ", "))
    elseif value ~= nil and value:is_complex() and not target:is_complex() then
      problems[#problems + 1] = ("'%s' is %s, the module's %s has no imaginary parts"):format(name, value.dtype,
          target.dtype)
    elseif (same_dtype or options.dtype) and value ~= nil and value.dtype ~= target.dtype then
      problems[#problems + 1] = ("'%s' is %s, the module's is %s; %s = false casts"):format(name, value.dtype,
          target.dtype, same_dtype and "strict" or "dtype")
    end
  end
  if #problems > 0 then
    fail(self:class_name() .. ": load_state_dict: " .. table.concat(problems, "\n  also  ")
      .. (of_names == #problems and kFixNames or kFixState))
  end
  return own, tensors, result
end

--- Module:load_state_dict, which module.lua describes.
function state.load_state_dict(self, given, options)
  local own, tensors, result = check_state(self, given, options)
  mh.no_grad(function()
    for name, target in own do
      if tensors[name] ~= nil then target:copy_(mh._pt.read_for(tensors[name], target)) end
    end
  end)
  return result
end

--- The module's own tensors and those of `given` by name, and the result of load_state_dict, which this does not
--- change.
function state.check(self, given, options) return check_state(self, given, options) end

--- For checkpoints, whose tensors are still on the disk: `given` says what they are (device "meta"). Returns the
--- module's tensors and those given, by name.
function state.check_saved(self, given, options)
  return check_state(self, given, {strict = options.strict}, options.strict ~= false)
end

return state
