-- SPDX-License-Identifier: Apache-2.0
-- CF and NetCDF: dims have names, and a dataset named as its only dim holds coordinates. Axes are found by what
-- attributes say they are (standard_name, units, axis), never by names: the same archive has called its time `time` and
-- `valid_time`.

local mh = require "moonhalo"
local calendar = require "moonhalo.data.calendar"
local sorted = require "moonhalo.internal.sorted_keys"

local fail = mh.fail

--- A dataset whose facts are asked of the file once each; `source` is itself.
local function remembered(dataset)
  return setmetatable({source = dataset}, {__index = function(self, key)
    local fact = dataset[key]
    rawset(self, key, fact)
    return fact
  end})
end

local function is_coordinate(dataset)
  local dims = dataset.dims
  return #dims == 1 and dims[1] ~= "" and dims[1] == dataset.name:match("[^/]*$") and dataset.has_values
      and dataset.is_numeric
end

local kNorth = {degrees_north = true, degree_north = true, degree_N = true, degrees_N = true, degreeN = true,
    degreesN = true}
local kEast = {degrees_east = true, degree_east = true, degree_E = true, degrees_E = true, degreeE = true,
    degreesE = true}
local kOfNames = {time = "T", latitude = "Y", grid_latitude = "Y", projection_y_coordinate = "Y", longitude = "X",
  grid_longitude = "X", projection_x_coordinate = "X"}

--- "T", "Y", "X", "Z" or nil.
local function role_of(attrs)
  local text = function(name) return type(attrs[name]) == "string" and attrs[name] or "" end
  local units = text "units"
  if kOfNames[text "standard_name"] then return kOfNames[text "standard_name"] end
  if text("axis"):upper():match("^[TXYZ]$") then return text("axis"):upper() end
  if units:lower():find(" since ", 1, true) then return "T" end
  return kNorth[units] and "Y" or kEast[units] and "X" or text "positive" ~= "" and "Z" or nil
end

local function numbers(dataset) return dataset.source:read{dtype = "float64", decode = true}:tolist() end

local cf = {name = "cf"}

function cf.matches(file)
  for _, path in ipairs(file:datasets()) do
    if is_coordinate(remembered(file[path])) then return true end
  end
  return false
end

--- Coordinates by dim, and the roles of dims.
local function read_coordinates(file, datasets)
  local coordinates, roles, bounds = {}, {}, {}
  for _, dataset in ipairs(datasets) do
    local attrs = dataset.attrs
    for _, name in ipairs {"bounds", "climatology"} do
      if type(attrs[name]) == "string" then bounds[attrs[name]] = true end
    end
    if is_coordinate(dataset) then
      local name = dataset.dims[1]
      coordinates[name], roles[name] = dataset, role_of(attrs)
    end
  end
  return coordinates, roles, bounds
end

--- A time that is one number: the file is of one step (as xarray writes what isel(time = i) took).
local function scalar_times(datasets)
  local found = {}
  for _, dataset in ipairs(datasets) do
    if #dataset.dims == 0 and dataset.has_values and dataset.is_numeric then
      local units = dataset.attrs.units
      if role_of(dataset.attrs) == "T" and type(units) == "string" and units:lower():find(" since ", 1, true) then
        found[dataset.name] = dataset
      end
    end
  end
  return found
end

local function find_axis(roles, coordinates, wanted, file)
  if wanted then
    if not coordinates[wanted] then
      fail(("data.open: '%s' has no coordinate '%s'%s\n  have  %s\n" ..
        "  fix   give axis the name of a dim that has coordinates"):format(
        file.path, wanted, mh.did_you_mean(wanted, sorted(coordinates)), table.concat(sorted(coordinates), ", ")))
    end
    return wanted
  end
  local found
  for name, role in pairs(roles) do
    if role == "T" then
      if found and coordinates[name].attrs.standard_name ~= "time"
          and coordinates[found].attrs.standard_name ~= "time" then
        fail(("data.open: '%s' has two axes of time, '%s' and '%s'\n  have  no standard_name \"time\" of one\n" ..
            "  fix   say which: axis = \"%s\"")
          :format(file.path, found, name, found))
      end
      if not found or coordinates[name].attrs.standard_name == "time" then found = name end
    end
  end
  return found
end

--- Dims of space in the order in which a field has them: those of latitude and longitude, else all but the axis.
local function find_space(fields, roles, axis)
  local largest
  for _, name in ipairs(sorted(fields)) do
    if not largest or #fields[name].dims > #fields[largest].dims then largest = name end
  end
  local space, others = {}, {}
  for _, dim in ipairs(largest and fields[largest].dims or {}) do
    if dim ~= axis then others[#others + 1] = dim end
    if roles[dim] == "Y" or roles[dim] == "X" then space[#space + 1] = dim end
  end
  return #space > 0 and space or others
end

local function text_of(value) return type(value) == "string" and value or nil end

function cf.describe(file, options)
  local datasets = {}
  for i, path in ipairs(file:datasets()) do datasets[i] = remembered(file[path]) end
  local coordinates, roles, bounds = read_coordinates(file, datasets)
  local scalars = scalar_times(datasets)
  local of_steps = coordinates[options.axis or find_axis(roles, coordinates, nil, file)] and true or false
  if not of_steps and (options.axis == nil or scalars[options.axis]) then
    for name, dataset in pairs(scalars) do coordinates[name], roles[name] = dataset, "T" end
  end
  local axis = find_axis(roles, coordinates, options.axis, file)
  local head = {axis = axis, scalar_axis = axis and scalars[axis] and true or nil, trajectories = 1, join = "axis",
    coordinates = {}, fields = {}, steps = 1, roles = {}}
  for name, role in pairs(roles) do
    if role ~= "T" or name == axis then head.roles[name] = role end
  end
  for _, dataset in ipairs(datasets) do
    local dims, name = dataset.dims, dataset.name
    local named = #dims > 0
    for _, dim in ipairs(dims) do named = named and dim ~= "" end
    local base = name:match("[^/]*$")
    if named and dataset.has_values and dataset.is_numeric and not is_coordinate(dataset) and not bounds[base] then
      local attrs = dataset.attrs
      head.fields[name] = {datasets = {name}, dims = dims, shape = dataset.shape, units = text_of(attrs.units),
        standard_name = text_of(attrs.standard_name)}
    end
  end
  head.space = options.space or find_space(head.fields, roles, axis)
  for name, dataset in pairs(coordinates) do
    if name ~= axis and not scalars[name] then head.coordinates[name] = numbers(dataset) end
  end
  if axis then
    local attrs = coordinates[axis].attrs
    local read = options.dates ~= false
      and calendar.reader(text_of(attrs.units), text_of(attrs.calendar),
          ("data.open: '%s', '%s'"):format(file.path, axis)) or nil
    local times = numbers(coordinates[axis])
    head.times = type(times) == "table" and times or {times}
    head.steps, head.dates = #head.times, read ~= nil
    head.calendar = read and calendar.name(text_of(attrs.calendar)) or nil
    head.time_units = not read and text_of(attrs.units) or nil
    for i, value in ipairs(head.times) do
      if read then head.times[i] = read(value) end
    end
    for _, value in ipairs(head.times) do
      if value ~= value and options.dates == false then
        head.times = nil
        break
      end
    end
  end
  return head
end

return cf
