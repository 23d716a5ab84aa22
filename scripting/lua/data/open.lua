-- SPDX-License-Identifier: Apache-2.0
-- mh.data.open: files to a collection. Rank 0 finds the files; each head is read by one rank, which tells it the
-- others, or comes from an index that was kept. All ranks then know the same files, and one clear error is the same
-- everywhere.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local check_dims = require "moonhalo.data.check_dims"
local check_head = require "moonhalo.data.check_head"
local heads_of = require "moonhalo.data.heads"
local layouts = require "moonhalo.data.layouts"
local sorted = require "moonhalo.internal.sorted_keys"
local text = require "moonhalo.data.text"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional
local kOpen = signature("data.open", {"files", optional "layout", optional "axis", optional "space", optional "join",
  optional "index", optional "dates", optional "may_differ", optional "dims"})
local kMayDiffer = {"calendar", "coordinates", "times", "units"}

local function find_files(source)
  local list = type(source) == "table" and source or {source}
  local found, seen = {}, {}
  for _, one in ipairs(list) do
    if type(one) ~= "string" then
      fail(("data.open: expected paths, patterns or folders, got %s\n  have  a list of %d\n" ..
          "  fix   give a string, or a list of strings"):format(text.of(one), #list))
    end
    for _, path in ipairs(mh._data.find_files(one)) do
      if seen[path] then
        fail(("data.open: '%s' is named twice\n  have  %s\n  fix   leave one of them out"):format(path, one))
      end
      seen[path], found[#found + 1] = true, path
    end
  end
  if #found == 0 then fail("data.open: no files\n  have  an empty list\n  fix   give paths, patterns or folders") end
  return found
end

--- {version, layout, head} of one file.
local function read_head(path, options)
  local version = mh._data.file_version(path)
  local file <close> = mh.h5.open(path)
  local layout = layouts.choose(file, options.layout)
  local head = layout.describe(file, options)
  head.join = options.join or head.join
  check_head(head, path, layout.name)
  for _, field in pairs(head.fields) do
    local dataset = file[field.datasets[1]]
    if dataset.chunks and #dataset.filters > 0 then field.chunks = dataset.chunks else field.rows =
        dataset.rows_together end
  end
  return {path = path, version = version, layout = layout.name, head = head}
end

--- The index of heads, if there shall be one: by path, of files that are as they were. Layouts of users' own may have
--- changed.
local function kept_heads(paths, options, key)
  local entries = {}
  if not options.index then return entries, {} end
  local known = heads_of.read_index(options.index, key)
  for i, path in ipairs(paths) do
    local entry = known[path]
    if entry and entry.version == mh._data.file_version(path) then entries[#entries + 1] = {number = i, path = path,
      version = entry.version, layout = entry.layout, head = entry.head} end
  end
  return entries, known
end

--- Reads the heads of files of these numbers, each rank its share; all of them as text, by rank. Collective.
local function read_in_shares(paths, numbers, options)
  local alone = mh.world_size() == 1 or mh.backend() == "fake"  -- ranks of a dry run are simulated
  local ranks, rank = alone and 1 or mh.world_size(), alone and 0 or mh.rank()
  local mine = mh._files.on_every_rank(function()
    local entries = {}
    for k = #numbers * rank // ranks + 1, #numbers * (rank + 1) // ranks do
      local entry = read_head(paths[numbers[k]], options)
      entry.number = numbers[k]
      entries[#entries + 1] = entry
    end
    return mh.json.encode(heads_of.pack(entries))
  end)
  return alone and {mine} or mh._files.of_all_ranks(mine)
end

--- {layout, files, versions, heads} of all files. Collective.
local function find_heads(options)
  local key = mh.json.encode{options.layout or "", options.axis or "", options.space or {}, options.join or "",
      options.dates ~= false, options.dims or {}, options.may_differ}
  local known
  local start = mh.json.decode(mh._files.on_first_rank(function()
    local paths = find_files(options.files)
    local kept
    kept, known = kept_heads(paths, options, key)
    return mh.json.encode{paths = paths, kept = heads_of.pack(kept)}
  end))
  local entries, missing = {}, {}
  for _, entry in ipairs(heads_of.unpack(start.kept)) do entries[entry.number] = entry end
  for i in ipairs(start.paths) do
    if not entries[i] then missing[#missing + 1] = i end
  end
  if #missing > 0 then
    for _, text in ipairs(read_in_shares(start.paths, missing, options)) do
      for _, entry in ipairs(heads_of.unpack(mh.json.decode(text))) do entries[entry.number] = entry end
    end
  end
  local found = {layout = entries[1].layout, files = start.paths, versions = {}, heads = {}}
  for i, entry in ipairs(entries) do
    if entry.layout ~= found.layout then
      fail(("data.open: two layouts\n  have  '%s' is '%s', '%s' is '%s'\n" ..
        "  fix   open them apart, or give layout ="):format(entries[1].path, found.layout, entry.path, entry.layout))
    end
    found.versions[i], found.heads[i] = entry.version, entry.head
  end
  if options.index and #missing > 0 then
    mh._files.on_first_rank(function()
      for _, entry in ipairs(entries) do
        known[entry.path] = {path = entry.path, version = entry.version, layout = entry.layout, head = entry.head}
      end
      local all = {}
      for i, path in ipairs(sorted(known)) do all[i] = known[path] end
      heads_of.write_index(options.index, key, all)
    end)
  end
  return found
end

--- Options are compared between ranks as text: strings, numbers, booleans and tables of them.
local function check_plain(name, value)
  local kind = type(value)
  if kind == "nil" or kind == "string" or kind == "number" or kind == "boolean" then return end
  if kind ~= "table" or getmetatable(value) then
    fail(("data.open: %s is %s\n  fix   give a string, or a table of strings"):format(name, text.of(value)))
  end
  for _, one in pairs(value) do check_plain(name, one) end
end

--- Names of dims are a list of strings, or one such list a dataset, for the layout "plain".
local function check_names(options)
  local of = ", of a file of layout 'plain'"
  check_dims("data.open", options, "layout " .. text.of(options.layout), of)
  if options.dims ~= nil and options.layout and options.layout ~= "plain" then
    fail(("data.open: dims is %s\n  have  layout %s\n  fix   leave one of them out: dims are%s"):format(
      text.of(options.dims), text.of(options.layout), of))
  end
end

--- mh.data.open(files, {layout = nil, axis = nil, space = nil, join = nil, index = nil, dates = nil, may_differ = nil,
---     dims = nil}) -> Collection
---   Opens files as one collection of fields: NetCDF, HDF5, Zarr, The Well, PDEBench, .npy. Only heads and coordinates
---   are read. data.fields has the fields by name.
---   files       string|{string}   a path, a pattern ("era5/t2m_*.nc"), a folder, or a list of them
---   layout      string?     the name of a layout; nil finds it out
---   axis        string?     the dim that steps follow
---   space       {string}?   names of the dims of space
---   join        "trajectories"?   the steps of each file are a run of their own
---   index       string?     path of a file that keeps the heads, so that only new files are opened again
---   dates       boolean?    false: times are numbers as they are stored
---   may_differ   {string}?   "units", "coordinates", "calendar" or "times", in which files may differ
---   dims        table?      names of the dims of a file that does not name them, {"sample", "time", "y", "x"}, or by
---     dataset: "sample" counts trajectories, "time" is the axis, "channel" counts channels, others are space
---   returns     Collection  the same on all ranks
---   collective  over all ranks, which give the same arguments
---   errors      ValueError: no file, an unknown layout, or files that do not fit together; on all ranks
---   example
---     local path = ("%s/open%d.h5"):format(folder, mh.world_size())
---     local out = mh.h5.open(path, "w")
---     out:write("u", mh.distribute_tensor(mh.rand{2, 10, 8}, mesh, {mh.Shard(2)}))
---     out:close()
---     local data = mh.data.open(path, {dims = {"sample", "time", "x"}})
---     #data:windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}    --> 18
return function(...)
  local options = arguments.read(kOpen, ...)
  for _, name in ipairs(kOpen.names) do check_plain(name, options[name]) end
  mh._data.check_same("data.open", "arguments",
    mh.json.encode {options.files, options.layout or "", options.axis or "", options.space or {}, options.join or "",
      options.index or "", options.dates == nil and "" or options.dates, options.may_differ or {}, options.dims or {}})
  if options.join ~= nil then arguments.choice("data.open", "join", options.join, {"trajectories"}) end
  if options.dates ~= nil and type(options.dates) ~= "boolean" then
    fail(("data.open: dates is %s\n  have  times that are dates where the file says so\n" ..
      "  fix   give false for times that are numbers"):format(text.of(options.dates)))
  end
  check_names(options)
  if options.dims ~= nil then options.layout = "plain" end
  local may_differ = {}
  for _, one in ipairs(type(options.may_differ) == "table" and options.may_differ or {options.may_differ}) do
    may_differ[arguments.choice("data.open", "may_differ", one, kMayDiffer)] = true
  end
  options.may_differ = sorted(may_differ)
  if options.index ~= nil and type(options.index) ~= "string" then
    fail(("data.open: index is %s\n  have  heads that a file shall keep\n  fix   give the path of that file"):format(
        text.of(options.index)))
  end
  if options.index and not layouts.come_with_moonhalo(options.layout) then
    fail(("data.open: an index does not know of layouts of one's own\n  have  %s\n" ..
      "  fix   leave index out, or give layout = the name of another"):format(
      options.layout and "layout '" .. options.layout .. "'" or table.concat(layouts.names(), ", ")))
  end
  return require("moonhalo.data.collection")._join(find_heads(options), may_differ)
end
