-- SPDX-License-Identifier: Apache-2.0
-- mh.data.open: files to a collection. Rank 0 finds and reads the heads of all files, and tells them the others, which open
-- a file when they read from it: so all ranks know the same files, and one clear error is the same everywhere.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local layouts = require "moonhalo.data.layouts"
local sorted = require "moonhalo.internal.sorted_keys"
local text = require "moonhalo.data.text"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional
local kOpen = signature("data.open", {"files", optional "layout", optional "axis", optional "space", optional "join"})

local function find_files(source)
  local list = type(source) == "table" and source or {source}
  local found, seen = {}, {}
  for _, one in ipairs(list) do
    if type(one) ~= "string" then
      fail(("data.open: wanted paths, patterns or folders, got %s\n  have  a list of %d\n  fix   give a text, or a list of texts"):format(text.of(one), #list))
    end
    for _, path in ipairs(mh._data.find_files(one)) do
      if seen[path] then fail(("data.open: '%s' is named twice\n  have  %s\n  fix   leave one of them out"):format(path, one)) end
      seen[path], found[#found + 1] = true, path
    end
  end
  if #found == 0 then fail("data.open: no files\n  have  an empty list\n  fix   give paths, patterns or folders") end
  return found
end

local function check_head(head, path, layout)
  local function refuse(problem, fix)
    fail(("data.open: '%s': %s\n  have  layout '%s'\n  fix   %s"):format(path, problem, layout.name, fix))
  end
  if #sorted(head.fields) == 0 then refuse("no field was found", "look with moonhalo inspect, and choose another by layout =") end
  for _, name in ipairs(sorted(head.fields)) do
    local field, seen = head.fields[name], {}
    if #field.dims ~= #field.shape then
      refuse(("'%s' has %d dims and %d names of dims"):format(name, #field.shape, #field.dims), "mend the layout's describe")
    end
    for i, dim in ipairs(field.dims) do
      if seen[dim] then refuse(("'%s' has the dim '%s' twice"):format(name, dim), "name its dims differently, or leave it out of the file") end
      seen[dim] = true
      local wanted = dim == head.axis and head.steps or dim == "sample" and head.join == "trajectories" and head.trajectories
        or head.coordinates[dim] and #head.coordinates[dim]
      if wanted and wanted ~= field.shape[i] then
        refuse(("'%s' has %d along '%s', which has %d"):format(name, field.shape[i], dim, wanted), "mend the file, or leave it out")
      end
    end
  end
  if head.steps == 0 then refuse(("'%s' has length zero"):format(tostring(head.axis)), "leave the file out") end
  if head.times and #head.times ~= head.steps then
    refuse(("'%s' has %d steps and %d times"):format(head.axis, head.steps, #head.times), "mend the file, or the layout's describe")
  end
  for i = 2, #(head.times or {}) do
    if not (head.times[i] > head.times[i - 1]) then
      refuse(("'%s' does not increase: step %d is not after step %d"):format(head.axis, i - 1, i - 2), "sort the file's steps, and leave out those that are there twice")
    end
  end
  return head
end

--- The heads of all files as one text, by rank 0.
local function read_heads(paths, options)
  local heads, versions, layout = {}, {}, nil
  for i, path in ipairs(paths) do
    versions[i] = mh._data.file_version(path)
    local file <close> = mh.h5.open(path)
    layout = layout or layouts.choose(file, options.layout)
    if i > 1 and not options.layout and layouts.choose(file) ~= layout then
      fail(("data.open: two layouts\n  have  '%s' is '%s', '%s' is '%s'\n  fix   open them apart, or give layout ="):format(paths[1],
        layout.name, path, layouts.choose(file).name))
    end
    heads[i] = layout.describe(file, options)
    heads[i].join = options.join or heads[i].join
    check_head(heads[i], path, layout)
    for _, field in pairs(heads[i].fields) do
      local dataset = file[field.datasets[1]]
      if dataset.chunks and #dataset.filters > 0 then field.chunks = dataset.chunks end
    end
  end
  return mh.json.encode {layout = layout.name, files = paths, versions = versions, heads = heads}
end

--- Opens files as one collection of fields. `files`: a path, a pattern ("era5/t2m_*.nc"), a folder, or a list of them.
--- Options: layout (the name of one, else it is found out), axis (the dim that steps follow), space (names of the dims of
--- space), join ("trajectories": the steps of each file are a run of their own, as those of scenarios). Only heads and coordinates are read. Collective over all ranks, which give the same arguments.
return function(...)
  local options = arguments.read(kOpen, ...)
  mh._data.check_same("data.open", "arguments",
    mh.json.encode {options.files, options.layout or "", options.axis or "", options.space or {}, options.join or ""})
  if options.join ~= nil then arguments.choice("data.open", "join", options.join, {"trajectories"}) end
  local heads = mh._files.on_first_rank(function() return read_heads(find_files(options.files), options) end)
  return require("moonhalo.data.collection").join(mh.json.decode(heads))
end
