-- SPDX-License-Identifier: Apache-2.0
-- Loads what check_data.py has made, over uneven blocks, and writes the batches whole (X18, X21): moonhalo run load.lua
-- -- FOLDER
local mh = require "moonhalo"

local folder = arg[1]
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local out = mh.h5.open(folder .. "/loaded.h5", "w")

--- Blocks of a dim of `rows`: the first rank has most of them.
local function uneven(rows)
  local sizes = {rows}
  for rank = 2, mh.world_size() do sizes[1], sizes[rank] = sizes[1] - 1, 1 end
  return sizes
end

local function load(name, source, windows, options)
  local data = mh.data.open(source)
  if mh.rank() == 0 then print(data) end
  local set = data:windows(windows)
  if mh.rank() == 0 then print(set) end
  local dim = data.space[#data.space]
  local rows = data.fields[set.inputs.fields[1]].space_shape[#data.space]
  local parts = {inputs = {}, targets = {}}
  for batch in set:loader{mesh = mesh, cut = {[dim] = {"domain", uneven(rows)}}, batch = 4,
      missing = options}:batches() do
    for kind, list in pairs(parts) do list[#list + 1] = batch[kind]:full_tensor() end
  end
  for kind, list in pairs(parts) do out:write(name .. "/" .. kind, mh.cat(list, 0)) end
  local stats = set:statistics()
  for field, of in pairs(stats.fields) do
    out:write(name .. "/mean/" .. field, mh.tensor(of.mean, {dtype = "float64"}))
    out:write(name .. "/std/" .. field, mh.tensor(of.std, {dtype = "float64"}))
  end
end

load("cf", folder .. "/era_*.nc", {inputs = {fields = {"t2m", "v"}, steps = {-1, 0}},
    targets = {fields = {"u"}, steps = {1}}}, "keep")
load("well", folder .. "/well", {inputs = {fields = {"tracer", "velocity"}, steps = {0, 1}},
    targets = {fields = {"stress"}, steps = {2}}})
load("lzf", folder .. "/ns_incom.h5", {inputs = {fields = {"velocity"}, steps = {0}},
    targets = {fields = {"particles"}, steps = {1}}})
load("seeds", folder .. "/diff_react.h5", {inputs = {fields = {"data"}, steps = {0}},
    targets = {fields = {"data"}, steps = {2}}})
load("plain", folder .. "/plain.h5", {inputs = {"x"}, targets = {"y"}})
load("makani", folder .. "/makani", {inputs = {fields = {"fields"}, steps = {-1, 0}},
    targets = {fields = {"fields"}, steps = {1}}})
out:close()

--- Text where numbers are required is the same error on every rank.
local function refuses_text(options, text)
  local read, message = pcall(function()
    for _ in mh.data.open(folder .. "/plain.h5", options):windows{inputs = {"names"}}:loader{}:batches() do end
  end)
  assert(not read and message:find(text, 1, true), message)
  mh._data.check_same("text", "messages", message)
end

refuses_text({}, "windows: no field 'names'\n  have  x, y\n  fix   ")
mh.data.layouts.add{name = "texts", matches = function() return false end, describe = function()
  return {axis = "n", space = {}, steps = 2, trajectories = 1, join = "axis", coordinates = {},
    fields = {names = {datasets = {"names"}, dims = {"n"}, shape = {2}}}}
end}
refuses_text({layout = "texts"}, "plain.h5\": no tensor holds its type string\n  have  ")
