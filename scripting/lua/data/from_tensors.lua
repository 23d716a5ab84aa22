-- SPDX-License-Identifier: Apache-2.0
-- mh.data.from_tensors: a collection of tensors of the user's, without a file.

local mh = require "moonhalo"
local added = require "moonhalo.data.added_fields"
local arguments = require "moonhalo.internal.arguments"
local check_dims = require "moonhalo.data.check_dims"
local check_head = require "moonhalo.data.check_head"
local plain = require "moonhalo.data.layouts.plain"
local sorted = require "moonhalo.internal.sorted_keys"
local text = require "moonhalo.data.text"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional
local kFrom = signature("data.from_tensors", {"tensors", optional "dims", optional "axis", optional "space",
  optional "times", optional "calendar", optional "coordinates", optional "units"})

--- Tensors as the datasets of an open file, for layouts.
local function as_file(tensors)
  local file = {path = "tensors"}
  function file.datasets() return sorted(tensors) end
  for _, name in ipairs(sorted(tensors)) do
    local dims = {}
    for i = 1, tensors[name].ndim do dims[i] = "" end
    file[name] = {name = name, shape = tensors[name].shape, dims = dims, units = "", has_values = true,
        is_numeric = true}
  end
  return file
end

--- A list of numbers, of a list or a 1-D tensor.
local function numbers(what, given)
  local list = mh.is_tensor(given) and given.ndim == 1 and given:tolist() or given
  for _, number in ipairs(type(list) == "table" and list or {}) do
    if type(number) ~= "number" then list = nil end
  end
  if type(list) ~= "table" then
    fail(("data.from_tensors: %s are %s\n  have  no numbers\n  fix   give a list of numbers, or a 1-D tensor"):format(
        what, text.of(given)))
  end
  return list
end

local function check_tensors(given)
  local tensors = {}
  if type(given) ~= "table" or #sorted(given) == 0 then
    fail(("data.from_tensors: the tensors are %s\n  have  no fields\n  fix   give {name = tensor}"):format(
        text.of(given)))
  end
  for _, name in ipairs(sorted(given)) do
    if type(name) ~= "string" or name:find("/", 1, true) then
      fail(("data.from_tensors: a field is named %s\n  have  a table of tensors by name\n" ..
          "  fix   give {name = tensor}, names without '/'"):format(text.of(name)))
    end
    tensors[name] = added.check_tensor("data.from_tensors", name, given[name])
  end
  return tensors
end

--- Units of fields, and coordinates of dims: by name.
local function check_names(options, tensors)
  check_dims("data.from_tensors", options, "tensors " .. table.concat(sorted(tensors), ", "), "")
  for _, what in ipairs {"units", "coordinates"} do
    local given = options[what]
    if given ~= nil and (type(given) ~= "table" or getmetatable(given)) then
      fail(("data.from_tensors: %s are %s\n  have  no table\n  fix   give {name = value}"):format(what, text.of(given)))
    end
  end
  for name, unit in pairs(options.units or {}) do
    arguments.choice("data.from_tensors", "field in units", name, sorted(tensors))
    arguments.text("data.from_tensors", "units." .. name, unit)
  end
end

--- mh.data.from_tensors(tensors, {dims = nil, axis = nil, space = nil, times = nil, calendar = nil, coordinates = nil,
---     units = nil}) -> Collection
---   A collection of plain tensors, as mh.data.open makes one of a file. They are not copied, and must not be changed.
---   tensors     table       fields by name, the same on all ranks
---   dims        table?      names of the dims of all, {"sample", "time", "y", "x"}, or by field: "sample" counts
---     trajectories, "time" is the axis, "channel" counts channels, others are space
---   axis        string?     another dim that steps follow
---   space       {string}?   names of the dims of space
---   times       {number}|Tensor?   of the steps, increasing; with calendar seconds since 1970
---   calendar    string?     such as "standard"
---   coordinates   table?    numbers by dim
---   units       table?      strings by field
---   returns     Collection  the same on all ranks
---   collective  over all ranks
---   errors      ValueError: fields that do not fit together
---   example
---     local data = mh.data.from_tensors({u = mh.arange(40):float():reshape{10, 4}}, {dims = {"time", "x"}})
---     local windows = data:windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}
---     #windows    --> 9
return function(given, ...)
  -- A table by name that is alone has no options.
  local rest = select("#", ...) > 0 and table.pack(...) or {{}, n = 1}
  local options = arguments.read(kFrom, given, table.unpack(rest, 1, rest.n))
  local tensors, versions = check_tensors(options.tensors), {}
  check_names(options, tensors)
  for i, name in ipairs(sorted(tensors)) do
    versions[i] = ("%s [%s] %s"):format(name, table.concat(tensors[name].shape, ","), mh._data.hash(tensors[name]))
  end
  local head = plain.describe(as_file(tensors), options)
  for _, name in ipairs(sorted(tensors)) do
    if not head.fields[name] then
      fail(("data.from_tensors: '%s' does not fit beside the others\n  have  shape [%s], %d steps along '%s'\n" ..
          "  fix   give its dims: dims = {%s = {names}}, or add it by "
        .. "add_field"):format(name, table.concat(tensors[name].shape, ", "), head.steps, tostring(head.axis), name))
    end
    local field = head.fields[name]
    field.values, field.changes, field.units = tensors[name], added.changes_of(tensors[name]), options.units
        and options.units[name]
  end
  if options.times ~= nil then head.times = numbers("times", options.times) end
  if options.calendar ~= nil then head.dates, head.calendar = true, options.calendar end
  for _, dim in ipairs(options.coordinates and sorted(options.coordinates) or {}) do
    head.coordinates[dim] = numbers("coordinates of '" .. tostring(dim) .. "'", options.coordinates[dim])
  end
  check_head(head, "tensors", "tensors")
  local version = mh._data.hash(table.concat(versions, "|"))
  mh._data.check_same("data.from_tensors", "tensors", mh.json.encode{version, options.dims or {}, head.times or {},
      head.coordinates})
  return require("moonhalo.data.collection")._join{layout = "tensors", files = {"tensors"}, versions = {version},
      heads = {head}}
end
