-- SPDX-License-Identifier: Apache-2.0
-- The Well: groups t0_fields, t1_fields and t2_fields of scalars, vectors and tensors [trajectory, time, space...,
-- D..., D...]; their attributes say which of these dims a field has. Files differ in how they write one name or
-- several.

local mh = require "moonhalo"
local trajectory_times = require "moonhalo.data.trajectory_times"

local fail = mh.fail
local well = {name = "well"}

local kGroups = {"t0_fields", "t1_fields", "t2_fields"}

function well.matches(file)
  return file:has("dimensions") and (file:has("t0_fields") or file:has("t1_fields") or file:has("t2_fields"))
end

--- A list, also of one text.
local function list_of(value)
  if value == nil then return {} end
  return type(value) == "table" and value or {value}
end

local function is_true(value, default)
  if value == nil then return default end
  return value == true or value == 1
end

local function boundaries(file)
  local found = {}
  if not file:has("boundary_conditions") then return found end
  for _, key in ipairs(file["boundary_conditions"]:keys()) do
    local attrs = file["boundary_conditions/" .. key].attrs
    for _, dim in ipairs(list_of(attrs.associated_dims)) do
      found[dim] = tostring(attrs.bc_type):lower()
    end
  end
  return found
end

local function numbers(dataset) return dataset:read{dtype = "float64"} end

--- Names of a field's dims: `rank` dims of components come last.
local function dims_of(dataset, rank, space, file)
  local attrs, dims = dataset.attrs, {}
  if is_true(attrs.sample_varying, true) then dims[#dims + 1] = "sample" end
  if is_true(attrs.time_varying, true) then dims[#dims + 1] = "time" end
  local varies = list_of(attrs.dim_varying)
  for i, dim in ipairs(space) do
    if is_true(varies[i], true) then dims[#dims + 1] = dim end
  end
  -- Tensors are stored [..., D, D], or by some files [..., D * D].
  local components = #dataset.shape - #dims
  if components ~= rank and not (rank == 2 and components == 1) then
    fail(("data.open: '%s' in '%s' has %d dims, its attributes tell of %d and %d of components\n" ..
        "  have  shape [%s], (%s)\n  fix   correct its "
      .. "attributes sample_varying, time_varying and dim_varying"):format(dataset.name, file.path, #dataset.shape,
          #dims, rank,
      table.concat(dataset.shape, ", "), table.concat(dims, ", ")))
  end
  for i = 1, components do dims[#dims + 1] = "component" .. (i > 1 and i or "") end
  return dims
end

function well.describe(file, options)
  local attrs = file.attrs
  local space = list_of(file["dimensions"].attrs.spatial_dims)
  local times, of_each
  if file:has("dimensions/time") then
    times, of_each = trajectory_times(file, "dimensions/time", numbers(file["dimensions/time"]), options)
  end
  local head = {axis = "time", space = space, times = times, times_of = of_each, steps = times and #times or 1,
    join = "trajectories",
    trajectories = attrs.n_trajectories or 1, coordinates = {}, fields = {}, boundary = boundaries(file)}
  for _, dim in ipairs(space) do
    local path = "dimensions/" .. dim
    if file:has(path) and #file[path].shape == 1 then head.coordinates[dim] = numbers(file[path]):tolist() end
  end
  for rank, group in ipairs(kGroups) do
    for _, name in ipairs(file:has(group) and file[group]:keys() or {}) do
      local dataset = file[group .. "/" .. name]
      head.fields[name] = {datasets = {dataset.name}, dims = dims_of(dataset, rank - 1, space, file),
        shape = dataset.shape, units = dataset.units ~= "" and dataset.units or nil}
    end
  end
  return head
end

return well
