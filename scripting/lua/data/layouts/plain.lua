-- SPDX-License-Identifier: Apache-2.0
-- Any file of arrays. The first dim counts samples; dims without names are called as PyTorch's layers would have them:
-- [sample, width], [sample, height, width], [sample, channel, height, width], [sample, channel, depth, height, width].
-- That is a guess, which `dims` replaces: {"sample", "time", "y", "x"} are trajectories. Groups whose names differ in a
-- number, with the same datasets, are trajectories too. So are .npy files (run_0.npy, run_1.npy), each of one field
-- that is named as the file is.

local mh = require "moonhalo"
local sorted = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local plain = {name = "plain"}

local kLast = {[2] = {"width"}, [3] = {"height", "width"}, [4] = {"channel", "height", "width"},
  [5] = {"channel", "depth", "height", "width"}}

function plain.matches() return true end

--- Where `name` stands in a list, from 1; nil if it does not.
local function place_of(name, list)
  for i, one in ipairs(list) do
    if one == name then return i end
  end
end

--- Names of the dims of a dataset, `name` as a field, and whether they are a guess.
local function dims_of(dataset, name, options, first)
  local given = options.dims and (options.dims[name:match("[^/]*$")] or #options.dims == #dataset.shape
      and options.dims)
  if given then return given, false end
  local dims, usual, guessed = {}, kLast[#dataset.shape] or {}, false
  for i, name in ipairs(dataset.dims) do
    guessed = guessed or name == "" and i > 1
    dims[i] = name ~= "" and name or i == 1 and first or usual[i - 1] or "dim_" .. i - 1
  end
  if options.axis and not place_of(options.axis, dims) then dims[1] = options.axis end
  return dims, guessed
end

--- Datasets by their names in groups that differ in a number, those of each group in the order of these numbers; nil
--- where files are not made so.
local function trajectories_of(datasets)
  local groups, of_group, pattern = {}, {}, nil
  for _, dataset in ipairs(datasets) do
    local group, name = dataset.name:match("^(.*)/([^/]*)$")
    local kind = group and group:find("%d") and group:gsub("%d+", "#")
    if not kind or pattern and kind ~= pattern then return nil end
    pattern = kind
    if not of_group[group] then groups[#groups + 1], of_group[group] = group, {} end
    of_group[group][name] = dataset
  end
  if #groups < 2 then return nil end
  local function number(group) return tonumber(group:match("%d+")) end
  table.sort(groups, function(a, b) return number(a) < number(b) or number(a) == number(b) and a < b end)
  local found = {}
  for _, group in ipairs(groups) do
    if #sorted(of_group[group]) ~= #sorted(of_group[groups[1]]) then return nil end
    for name, first in pairs(of_group[groups[1]]) do
      local one = of_group[group][name]
      if not one or table.concat(one.shape, ",") ~= table.concat(first.shape, ",") then return nil end
      found[name] = found[name] or {dataset = first, paths = {}}
      table.insert(found[name].paths, one.name)
    end
  end
  return found, #groups
end

--- The name of the field in a .npy file, and whether that is one of several trajectories: "run", true for run_0.npy.
local function name_of_npy(file)
  local stem = file.path:match("([^/]*)%.npy$")
  if not stem or table.concat(file:keys(), " ") ~= "data" then return nil end
  local name = stem:match("^(.*[^_.-])[_.-]+%d+$")
  if stem:match("^%d+$") then return "data", true end
  return name or stem, name ~= nil
end

--- {name -> {dataset, paths}} of all arrays of numbers, and the number of groups that are trajectories (nil: there are
--- none).
local function arrays_of(file)
  local npy, numbered = name_of_npy(file)
  if npy then return {[npy] = {dataset = file["data"], paths = {"data"}}}, numbered and 1 or nil end
  local datasets = {}
  for _, path in ipairs(file:datasets()) do
    local dataset = file[path]
    if dataset.has_values and dataset.is_numeric and #dataset.shape > 0 then datasets[#datasets + 1] = dataset end
  end
  local arrays, groups = trajectories_of(datasets)
  if arrays then return arrays, groups end
  arrays = {}
  for _, dataset in ipairs(datasets) do arrays[dataset.name] = {dataset = dataset, paths = {dataset.name}} end
  return arrays, nil
end

--- A dataset of other lengths counts something else; it is not a field of these samples. One without the axis is
--- static, if its dims were given.
local function belongs(dims, shape, head, options)
  for i, dim in ipairs(dims) do
    local wanted = dim == head.axis and head.steps or dim == "sample" and head.trajectories or nil
    if wanted and shape[i] ~= wanted then return false end
  end
  return place_of(head.axis, dims) ~= nil or options.dims ~= nil
end

--- True where dims were given by dataset, and time is the axis of another one.
local function has_time(options)
  for _, list in pairs(options.dims and #options.dims == 0 and options.dims or {}) do
    if place_of("time", list) then return true end
  end
  return false
end

function plain.describe(file, options)
  local arrays, groups = arrays_of(file)
  local head = {trajectories = groups or 1, join = groups and "trajectories" or "axis", coordinates = {}, fields = {},
      steps = 1, space = options.space or {}}
  local largest
  for _, name in ipairs(sorted(arrays)) do
    if not largest or #arrays[name].dataset.shape > #arrays[largest].dataset.shape then largest = name end
  end
  if not largest then return head end
  local shape = arrays[largest].dataset.shape
  if options.dims and #options.dims > 0 and #options.dims ~= #shape then
    fail(("data.open: dims has %d names, '%s' in '%s' has %d dims\n  have  (%s), shape [%s]\n" ..
      "  fix   name each dim"):format(#options.dims, largest, file.path,
      #shape, table.concat(options.dims, ", "), table.concat(shape, ", ")))
  end
  local first = groups and "time" or "sample"
  local dims, guessed = dims_of(arrays[largest].dataset, largest, options, first)
  head.axis = options.axis or (options.dims and place_of("time", dims) or has_time(options)) and "time" or dims[1]
  local axis_at = place_of(head.axis, dims)
  if not axis_at and not options.axis then  -- a file of fields that do not change
    head.axis, head.join = nil, "axis"
  elseif not axis_at then
    fail(("data.open: '%s' in '%s' has no dim '%s'\n  have  (%s)\n  fix   give axis the name of one"):format(largest,
      file.path, head.axis, table.concat(dims, ", ")))
  end
  head.steps, head.guessed = axis_at and shape[axis_at] or 1, guessed or nil
  local sample_at = head.axis ~= "sample" and place_of("sample", dims)
  if sample_at then head.trajectories, head.join = shape[sample_at], "trajectories" end
  for _, name in ipairs(sorted(arrays)) do
    local array = arrays[name]
    local its, units = dims_of(array.dataset, name, options, first), array.dataset.units
    if belongs(its, array.dataset.shape, head, options) then
      head.fields[name] = {datasets = array.paths, dims = its, shape = array.dataset.shape, units = units ~= ""
          and units or nil}
    end
  end
  if not options.space then
    for _, dim in ipairs(dims) do
      if dim ~= head.axis and dim ~= "channel" and dim ~= "sample" then head.space[#head.space + 1] = dim end
    end
  end
  return head
end

return plain
