-- SPDX-License-Identifier: Apache-2.0
-- Reads what check_judges.py has made in every way that mh.data has: moonhalo run judged.lua -- FOLDER OUT (X18, X21)
local mh = require "moonhalo"

local folder, out_path = arg[1], arg[2]
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})
local out = mh.h5.open(out_path, "w")

--- Blocks of a dim of `rows`: the first rank has most of them, the last nothing.
local function uneven(rows)
  local sizes = {}
  for rank = 1, mh.world_size() do
    sizes[rank] = rank == 1 and math.max(0, rows - mh.world_size() + 2) or rank < mh.world_size() and 1 or 0
  end
  if mh.world_size() == 1 then sizes[1] = rows end
  return sizes
end

--- Path, or list of paths, below the folder.
local function below(source)
  if type(source) == "string" then return folder .. "/" .. source end
  local list = {}
  for i, one in ipairs(source) do list[i] = below(one) end
  return list
end

local function read(case, name)
  local data = mh.data.open(below(case.source), case.options)
  local texts = {}
  for i, time in ipairs(data.times or {}) do texts[i] = data:time_text(time) end
  out:set_attr(name .. "@times", table.concat(texts, "|"))
  out:set_attr(name .. "@dates", data.dates)
  out:set_attr(name .. "@print", tostring(data))
  for _, field in ipairs(case.fields) do
    local frames = {}
    for run, of in ipairs(data.runs) do
      for step = 1, data.fields[field].varies and of.steps or 1 do
        frames[#frames + 1] = data.fields[field]:read(step - 1, {trajectory = run - 1, dtype = "float64"})
      end
    end
    out:write(name .. "/read/" .. field, mh.stack(frames, 0))
  end
  local set = data:windows{inputs = {fields = case.fields, steps = {0}}, static = case.static}
  local dim = data.space[#data.space]
  local rows = data.fields[case.fields[1]].space_shape[#data.space]
  for _, ahead in ipairs {0, 2} do
    local parts, static = {}, nil
    local loader = set:loader{mesh = mesh, cut = {[dim] = {"domain", uneven(rows)}}, batch = math.min(2, #set),
        missing = "keep", prefetch = ahead, dtype = "float64"}
    for batch in loader:batches() do
      parts[#parts + 1] = batch.inputs:full_tensor()
      static = batch.static and batch.static:full_tensor()
    end
    out:write(("%s/loaded%d"):format(name, ahead), mh.cat(parts, 0))
    if #case.static > 0 then out:write(("%s/static%d"):format(name, ahead), static["0"]) end
  end
  local stats = set:statistics()
  for field, of in pairs(stats.fields) do
    out:write(name .. "/mean/" .. field, mh.tensor(of.mean, {dtype = "float64"}))
  end
end

for _, case in ipairs(mh.json.load(folder .. "/cases.json")) do
  if case.refused then
    local opened, message = pcall(read, case, case.name)
    message = tostring(message):gsub(folder:gsub("%p", "%%%0") .. "/", "")
    out:set_attr(case.name .. "@refused", opened and "opened" or message)
    mh._data.check_same("judged", "messages", message)
  else
    read(case, case.name)
  end
end
out:close()
