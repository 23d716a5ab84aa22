-- SPDX-License-Identifier: Apache-2.0
-- Fields that no file holds: tensors of the user's, and what functions make of other fields. Windows, statistics and
-- batches take them as they take others.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local Field = require "moonhalo.data.field"
local made = require "moonhalo.data.made"
local sorted = require "moonhalo.internal.sorted_keys"
local text = require "moonhalo.data.text"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional
local added = {}

local kAdd = signature("add_field", {"name", optional "values", optional "dims", optional "from", optional "make",
  {"channels", 1}, optional "units", optional "version"})

local function shape_text(shape) return "[" .. table.concat(shape, ", ") .. "]" end

--- A plain real tensor on the CPU, which all ranks have identically.
function added.check_tensor(who, name, tensor)
  local function refuse(got, fix)
    fail(("%s: the values of '%s' are %s\n  have  one tensor for all ranks expected\n  fix   %s"):format(who, name, got,
        fix))
  end
  if not mh.is_tensor(tensor) then refuse(text.of(tensor), "give a tensor; mh.tensor(list) makes one") end
  if tensor:is_shard_tensor() then
    refuse("a ShardTensor, of which each rank has a block",
        "give its full_tensor(), or write it to a file and open that")
  end
  if tensor:is_complex() then refuse("complex", "give mh.view_as_real of them, or their parts as fields") end
  return tensor:detach():to("cpu")
end

--- Counts the writes into a tensor so far; nil for one of inference mode, which does not count them.
function added.changes_of(tensor) return not tensor:is_inference() and tensor._version or nil end

--- Sizes of the dims of space, as all fields have them.
local function space_shape(data)
  for _, name in ipairs(sorted(data.fields)) do
    if data.fields[name]:is_full() then return data.fields[name].space_shape end
  end
  fail(("add_field: no field has all dims of space\n  have  space (%s)\n" ..
      "  fix   give space = {names} to data.open"):format(table.concat(data.space, ", ")))
end

--- The lengths that dims with a meaning must have.
local function lengths(data)
  local found, shape = {sample = #data.runs}, space_shape(data)
  for i, dim in ipairs(data.space) do found[dim] = shape[i] end
  if data.axis then found[data.axis] = data.runs[1].steps end
  return found
end

local function check_dims(data, name, tensor, dims)
  if dims == nil then
    dims = data.space
    if #dims ~= tensor.ndim then
      fail(("add_field: which dims has '%s'?\n  have  shape %s, space (%s)\n" ..
        "  fix   give dims = {names}; '%s' is the axis, others than these count channels"):format(
        name, shape_text(tensor.shape), table.concat(data.space, ", "), tostring(data.axis)))
    end
  end
  local known, seen = lengths(data), {}
  if type(dims) ~= "table" or #dims ~= tensor.ndim then
    fail(("add_field: dims of '%s' are %s\n  have  shape %s\n  fix   give one name a dim"):format(name,
      type(dims) == "table" and #dims .. " names" or text.of(dims), shape_text(tensor.shape)))
  end
  for i, dim in ipairs(dims) do
    if type(dim) ~= "string" or seen[dim] then
      fail(("add_field: dims of '%s' have %s%s\n  have  shape %s\n  fix   give each dim a name of its own"):format(name,
        text.of(dim), seen[dim] and " twice" or "", shape_text(tensor.shape)))
    end
    seen[dim] = true
    if known[dim] and known[dim] ~= tensor.shape[i] then
      fail(("add_field: '%s' has %d along '%s', which has %d\n  have  shape %s, dims (%s)\n" ..
        "  fix   give as many, or name the dims in another order"):format(name,
        tensor.shape[i], dim, known[dim], shape_text(tensor.shape), table.concat(dims, ", ")))
    end
  end
  for _, run in ipairs(seen[data.axis] and data.runs or {}) do
    if run.steps ~= data.runs[1].steps then
      fail(("add_field: '%s' has the axis '%s', of which trajectories have other lengths\n  have  %d and %d steps\n" ..
        "  fix   leave the axis out, or open them apart"):format(name, data.axis, data.runs[1].steps, run.steps))
    end
  end
  for _, dim in ipairs(data.space) do
    if not seen[dim] then
      fail(("add_field: '%s' lacks the dim '%s'\n  have  dims (%s)\n  fix   expand it over all dims of space"):format(
          name, dim, table.concat(dims, ", ")))
    end
  end
  return dims
end

local function of_tensor(data, options)
  local tensor = added.check_tensor("add_field", options.name, options.values)
  local dims = check_dims(data, options.name, tensor, options.dims)
  local version = mh._data.hash(tensor)
  mh._data.check_same("add_field", "values of '" .. options.name .. "'",
      ("%s %s %s"):format(version, shape_text(tensor.shape), table.concat(dims, ",")))
  local head = {axis = data.axis, fields = {[options.name] = {datasets = {options.name}, dims = dims,
      shape = tensor.shape, units = options.units, values = tensor, changes = added.changes_of(tensor)}}}
  return Field.added(data, options.name, head, version)
end

local function of_function(data, options)
  local from = type(options.from) == "string" and {options.from} or options.from
  if type(from) ~= "table" or #from == 0 or type(options.make) ~= "function" then
    fail(("add_field: '%s' is made of %s by %s\n  have  fields %s\n" ..
      "  fix   give values = tensor, or from = {names} and make = function(a, b, ..., place)"):format(
      options.name, text.of(options.from), text.of(options.make), table.concat(sorted(data.fields), ", ")))
  end
  local self = {from = from, make = options.make, channels = options.channels, units = options.units,
      version = options.version}
  if math.type(self.channels) ~= "integer" or self.channels < 1 then
    fail(("add_field: channels of '%s' are %s\n  have  what its function makes\n" ..
        "  fix   give an integer of at least 1"):format(options.name, text.of(self.channels)))
  end
  for _, one in ipairs(from) do
    local field = data:_field(one, "add_field")
    if not field:is_full() then
      fail(("add_field: '%s' does not have all dims of space\n  have  %s, space is (%s)\n" ..
        "  fix   make '%s' of others"):format(one, tostring(field), table.concat(data.space, ", "), options.name))
    end
    self.space_shape = self.space_shape or field.space_shape
    self.varies = self.varies or field.varies
    self.chunk_steps = math.max(self.chunk_steps or 1, field.chunk_steps)
  end
  mh._data.check_same("add_field", "fields", mh.json.encode{options.name, from, options.channels, options.version
      or ""})
  return Field.made(data, options.name, self)
end

--- Adds a field that no file holds, under a name that is new. Either `values`: a plain tensor, the same on all
--- ranks, with the names of its dims (`dims`; left out where they are those of space): the axis, "sample" for
--- trajectories, all dims of space; others count channels. It is not copied, and an error once it has changed. Or
--- `from` and `make`: what make(values of the first, ..., place) gives, [frames, channels, space...] as its
--- arguments, with `channels` (1) of its own. It is called for the frames of a batch, of ShardTensors that are cut
--- as the batch, and by statistics and Field:read for whole plain frames, one or more at a time. So it must treat
--- each frame by itself and draw nothing. `place` has, by dim of space, `coordinates` (tensors that broadcast
--- against the values) and `rows` ({first, end} of this rank's), and by frame `times`, `steps` and `trajectories`.
--- `version`: a string that changes with the function, without which no statistics are kept of the field. `units`:
--- a string. Collective; the same on all ranks. Reads nothing.
function added.add(data, ...)
  local options = arguments.read(kAdd, ...)
  if type(options.name) ~= "string" or options.name == "" then
    fail(("add_field: the name is %s\n  have  no text\n  fix   give the name of the field"):format(
        text.of(options.name)))
  end
  if rawget(data.fields, options.name) then
    fail(("add_field: there is a field '%s' already\n  have  %s\n  fix   give another name"):format(options.name,
        tostring(data.fields[options.name])))
  end
  for _, name in ipairs {"units", "version"} do
    if options[name] ~= nil and type(options[name]) ~= "string" then
      fail(("add_field: %s of '%s' is %s\n  have  no text\n  fix   give a string"):format(name, options.name,
          text.of(options[name])))
    end
  end
  if (options.values ~= nil) == (options.from ~= nil or options.make ~= nil) then
    fail(("add_field: '%s' is %s\n  have  fields %s\n" ..
      "  fix   give values = tensor, or from = {names} and make = function(a, b, ..., place)"):format(options.name,
      options.values == nil and "made of nothing" or "both a tensor and a function",
        table.concat(sorted(data.fields), ", ")))
  end
  local field = options.values ~= nil and of_tensor(data, options) or of_function(data, options)
  rawset(data.fields, options.name, field)
  return field
end

--- Statistics that a file keeps must know when a function has changed.
function added.check_versions(data, names)
  for _, name in ipairs(names) do
    local field = data.fields[name]
    if field.make and not field.version then
      fail(("statistics: a cache does not know what the function of '%s' does\n  have  no version of it\n" ..
          "  fix   give version = TEXT to add_field, and change it with the "
        .. "function; or leave cache out"):format(name))
    end
    added.check_versions(data, field.from or {})
  end
end

--- One text for all added fields among these.
function added.versions(data, names, found)
  found = found or {}
  for _, name in ipairs(names) do
    local field = data.fields[name]
    if field.version then found[#found + 1] = name .. " " .. field.version end
    added.versions(data, field.from or {}, found)
  end
  return found
end

return added
