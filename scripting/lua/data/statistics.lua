-- SPDX-License-Identifier: Apache-2.0
-- Mean, standard deviation, least and greatest value of every channel of the fields of a set, over the steps that its
-- windows read, each once. Ranks share out the steps; what they find is merged in the order of the steps, in groups
-- that do not depend on how many ranks there are. So the result is the same, bit by bit, on any number of ranks and for
-- any cut.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local added = require "moonhalo.data.added_fields"
local made = require "moonhalo.data.made"
local Sources = require "moonhalo.data.sources"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"
local sorted = require "moonhalo.internal.sorted_keys"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional
local statistics = {}
local Statistics = {}
local meta = strict.class {name = "Statistics", methods = Statistics,
  fields = "fields of parts weights",
  elements = "stats.fields.NAME has mean, std, min and max of a field"}

--- statistics.fields -> table
---   By field: mean, std, min and max, lists with a number for each channel of the field.
---   example
---     local data = mh.data.from_tensors({u = mh.arange(8.0):reshape{4, 2}}, {dims = {"time", "x"}})
---     local u = data:windows{inputs = {fields = {"u"}, steps = {0}}}:statistics().fields.u
---     u.mean, u.max    --> {3.5}  {7.0}

local kStatistics = signature("statistics", {optional "cache", optional "weights", {"differences", false},
    {"of_any_split", false}})
local kReadAs = "float64"  -- as fields of files are read: kept statistics of other numbers are refused
local kGroup = 16  -- frames that one rank merges; part of what the bits mean
local kCache = 256 << 20
local kColumns = {"count", "weight", "mean", "squares", "min", "max"}

--- {run, step} of every frame of a field that the windows of a set read, each once, in order.
local function frames_of(set, name)
  local field = set.data.fields[name]
  if not field.varies then
    if field.make then field = set.data.fields[made.leaves(set.data, name)[1]] end
    -- A field that does not change counts once: for every file where files are runs of their own.
    local frames, seen = {}, {}
    for _, piece in ipairs(set.pieces) do
      local file, sample = set.data:_locate(piece.run, 0, field)
      local key = field.sample_at and file .. ":" .. sample or #field.datasets[file] > 1 and file .. ":" .. sample
          or file
      if not seen[key] then
        seen[key], frames[#frames + 1] = true, {piece.run, 0}
      end
    end
    return frames
  end
  local offsets = {}
  for _, part in ipairs {set.inputs, set.targets} do
    for _, one in ipairs(part.fields) do
      if one == name then table.move(part.steps, 1, #part.steps, #offsets + 1, offsets) end
    end
  end
  local frames, read = {}, {}
  for _, piece in ipairs(set.pieces) do
    local steps = read[piece.run] or {}
    read[piece.run] = steps
    for k = 0, piece.count - 1 do
      for _, offset in ipairs(offsets) do steps[piece.first + k * set.every + offset] = true end
    end
  end
  for _, run in ipairs(sorted(read)) do
    for _, step in ipairs(sorted(read[run])) do frames[#frames + 1] = {run, step} end
  end
  return frames
end

--- True if the coordinates of a dim may be latitudes in degrees.
local function may_be_latitudes(coordinates)
  for _, degrees in ipairs(coordinates or {}) do
    if math.abs(degrees) > 90.0001 then return false end
  end
  return coordinates ~= nil
end

--- float64, one number a place of space, or nil: the cosine of latitudes, or what a tensor says.
local function weights_of(data, given, shape)
  if given == nil then return nil end
  if mh.is_tensor(given) then
    if table.concat(given.shape, ",") ~= table.concat(shape, ",") then
      fail(("statistics: weights of another shape than space\n  have  [%s], space [%s]\n" ..
        "  fix   give one number a place"):format(table.concat(given.shape, ", "), table.concat(shape, ", ")))
    end
    local whole = (given:is_shard_tensor() and given:full_tensor() or given):to("cpu"):double():contiguous()
    if not whole:ge(0):all():item() then
      fail("statistics: weights below 0, or missing\n  have  " .. whole:min():item()
          .. " as the least\n  fix   give 0 where a place shall not count")
    end
    return whole
  end
  local known = {}
  for i, dim in ipairs(data.space) do
    local is_known = may_be_latitudes(rawget(data.coordinates, dim))
    if is_known then known[#known + 1] = dim end
    if dim == given and is_known then
      local column = {}
      for k in ipairs(shape) do column[k] = k == i and shape[i] or 1 end
      local cosine = mh.deg2rad(mh.tensor(data.coordinates[dim], {dtype = "float64", device = "cpu"})):cos():clamp(0)
      return cosine:reshape(column):expand(shape):contiguous()
    end
  end
  fail(("statistics: no latitudes '%s'%s\n  have  space (%s), coordinates from -90 to 90 of (%s)\n" ..
    "  fix   name a dim of space that has such coordinates in degrees, or give a tensor"):format(
    tostring(given), mh.did_you_mean(tostring(given), known), table.concat(data.space, ", "),
    table.concat(known, ", ")))
end

--- True if no other rank shares the work: ranks of a dry run are simulated.
local function is_alone() return mh.world_size() == 1 or mh.backend() == "fake" end

--- This rank's groups, first to last, of `count`.
local function share(count)
  if is_alone() then return 0, count end
  local ranks, rank = mh.world_size(), mh.rank()
  return count * rank // ranks, count * (rank + 1) // ranks
end

--- {run, step} of every anchor, `offset` steps on.
local function anchors_of(set, offset)
  local frames = {}
  for _, piece in ipairs(set.pieces) do
    for k = 0, piece.count - 1 do frames[#frames + 1] = {piece.run, piece.first + k * set.every + offset} end
  end
  return frames
end

--- Moments of groups [first, last) of frames of a field, a list. float64 holds what files have.
local function moments_of_read(data, name, first, last, frames, weights, before)
  local field, sources, zeros, parts = data.fields[name], Sources.new(data, {name}), {}, {}
  for i in ipairs(field.space_shape) do zeros[i] = 0 end
  local reader = sources:reader(zeros, field.space_shape, kReadAs, kCache)
  for group = first, last - 1 do
    local function places(of)
      return of and sources:places(name, {table.unpack(of, group * kGroup + 1,
          math.min((group + 1) * kGroup, #frames))})
    end
    parts[#parts + 1] = reader:moments(places(frames), field.channels, weights, places(before))
  end
  return parts
end

--- The same of a field that a function makes, a frame at a time, of what it gets in batches: float32.
local function moments_of_made(data, name, first, last, frames, weights, before)
  local read, parts = made.whole_reader(data, name, "float32", kCache), {}
  for group = first, last - 1 do
    local list = {}
    for i = group * kGroup + 1, math.min((group + 1) * kGroup, #frames) do
      local values = read{frames[i]}
      list[#list + 1] = mh._data.frame_moments(before and values - read{before[i]} or values, weights)
    end
    parts[#parts + 1] = mh._data.merge_moments(mh.stack(list, 0))
  end
  return parts
end

--- Moments [channels, 6] of these frames of a field, or of their differences from those `before`; the same on all
--- ranks. Collective.
local function moments_of(data, name, frames, weights, before)
  local field = data.fields[name]
  local groups = (#frames + kGroup - 1) // kGroup
  local first, last = share(groups)
  local parts = {}
  mh._files.on_every_rank(function()
    if first < last then
      parts = (field.make and moments_of_made or moments_of_read)(data, name, first, last, frames, weights, before)
    end
    return "read"
  end)
  local mine = #parts > 0 and mh.stack(parts, 0) or mh.zeros({0, field.channels, #kColumns},
      {dtype = "float64", device = "cpu"})
  if not is_alone() then
    local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"statistics"})
    mine = mh.from_local(mine, mesh, {mh.Shard(0)}):full_tensor()
  end
  return mh._data.merge_moments(mine)
end

local function summary(name, moments)
  local found = {}
  for i, column in ipairs(kColumns) do found[column] = moments[":, " .. i - 1]:tolist() end
  found.std, found.rms = {}, {}
  for i, count in ipairs(found.count) do
    if count == 0 or found.weight[i] == 0 then
      fail(("statistics: '%s' has no value in channel %d\n  have  %s\n  fix   leave the field out%s"):format(name,
        i - 1,
        count == 0 and "missing values only" or "weights of 0 only", count == 0 and "" or ", or give other weights"))
    end
    local variance = found.squares[i] / found.weight[i]
    found.std[i], found.rms[i] = math.sqrt(variance), math.sqrt(variance + found.mean[i] * found.mean[i])
  end
  found.squares, found.weight = nil, nil
  return found
end

--- Describes by how much a target changes from the anchor to each target step: {{step, mean, std, ...}, ...}, or nil.
local function differences_of(set, name, weights)
  local found, is_target = {}, false
  for _, one in ipairs(set.targets.fields) do is_target = is_target or one == name end
  for _, step in ipairs(is_target and set.targets.steps or {}) do
    local moments = moments_of(set.data, name, anchors_of(set, step), weights, anchors_of(set, 0))
    found[#found + 1] = summary(name, moments)
    found[#found].step = step
  end
  return is_target and found or nil
end

local function from_table(given)
  return setmetatable({fields = strict.table("stats.fields", given.fields), of = given.of, weights = given.weights,
      parts = given.parts}, meta)
end

--- An error for a number that JSON lacks: of a field without one value, say.
local function check_finite(fields)
  for _, name in ipairs(sorted(fields)) do
    for _, column in ipairs(sorted(fields[name])) do
      local list = fields[name][column]
      for _, number in ipairs(type(list) == "table" and list or {}) do
        if type(number) == "number" and (number ~= number or math.abs(number) == math.huge) then
          fail(("statistics: %s of '%s' is %s, which the file cannot hold\n" ..
              "  fix   leave out the field, or the samples, that have no "
            .. "values"):format(column, name, number))
        end
      end
    end
  end
end

--- statistics:save(path) -> nothing
---   Writes the statistics as JSON, which mh.data.load_statistics reads.
---   path        string      of the file
---   returns     nothing
---   collective  over all ranks
---   errors      ValueError: a field without finite statistics, or the disk refuses
---   example
---     local data = mh.data.from_tensors({u = mh.ones{10, 6}}, {dims = {"time", "x"}})
---     data:windows{inputs = {fields = {"u"}, steps = {0}}}:statistics():save(folder .. "/statistics.json")
---     mh.data.load_statistics(folder .. "/statistics.json").fields.u.mean    --> {1.0}
function Statistics:save(path)
  arguments.text("Statistics:save", "path", path)
  check_finite(self.fields)
  local content = mh.json.encode({fields = self.fields, of = self.of, weights = self.weights, parts = self.parts}, 1)
      .. "\n"
  mh._files.on_first_rank(function()
    local folder = path:match("^(.*)/[^/]*$")
    if folder and folder ~= "" then mh.files.make_folder(folder) end
    mh._files.write("statistics", path, content)
  end)
end

--- Fields by step, as the channels of a part of the windows come, or of a list of names.
local function fields_of(self, call, part)
  if type(part) == "table" and #part > 0 then return part end
  local known = self.parts and self.parts[part]
  if not known then
    fail(("Statistics:%s: no part %s\n  have  %s\n" ..
        "  fix   give one of them, or a list of names of fields in the order of the channels"):format(call,
      text.of(part),
      self.parts and table.concat(sorted(self.parts), ", ") or "statistics that were saved without parts"))
  end
  local names = {}
  for _ = 1, known.steps do table.move(known.fields, 1, #known.fields, #names + 1, names) end
  return names
end

--- mean and std of each channel of `x` [batch, channels, ...], as plain tensors [channels, 1, ...].
local function scales_of(self, call, x, part)
  if not mh.is_tensor(x) or x.ndim < 2 then
    fail(("Statistics:%s: expected a tensor [batch, channels, space...]\n  have  %s\n" ..
      "  fix   give a batch's part, or what a network makes of it"):format(call,
      mh.is_tensor(x) and "shape [" .. table.concat(x.shape, ", ") .. "]" or text.of(x)))
  end
  local mean, std = {}, {}
  for _, name in ipairs(fields_of(self, call, part)) do
    local of = rawget(self.fields, name)
    if not of then
      fail(("Statistics:%s: no field %s%s\n  have  %s\n  fix   give the name of one of them"):format(call,
        text.of(name), mh.did_you_mean(tostring(name), sorted(self.fields)), table.concat(sorted(self.fields), ", ")))
    end
    table.move(of.mean, 1, #of.mean, #mean + 1, mean)
    table.move(of.std, 1, #of.std, #std + 1, std)
  end
  if #mean ~= x.shape[2] then
    fail(("Statistics:%s: %d channels, the tensor has %d\n  have  shape [%s]\n" ..
      "  fix   give the part, or the fields, that the channels are of"):format(call, #mean,
      x.shape[2], table.concat(x.shape, ", ")))
  end
  local shape, kind = {#mean}, {dtype = x.dtype, device = x.device}
  for i = 3, x.ndim do shape[i - 1] = 1 end
  return mh.tensor(mean, kind):reshape(shape), mh.tensor(std, kind):reshape(shape)
end

--- statistics:denormalize(x, part) -> Tensor
---   x * std + mean of each channel: values in the units of the files, of what a loader with normalize gave, or of a
---   network's output. Differentiable.
---   x           Tensor      [batch, channels, space...]
---   part        string|{string}   "inputs", "targets" or "static" of the windows, or names of fields
---   returns     Tensor      the shape of x
---   collective  no for plain tensors; over the mesh of x otherwise
---   errors      ValueError: another number of channels
---   example
---     local data = mh.data.from_tensors({u = mh.arange(10):float():reshape{5, 2}}, {dims = {"time", "x"}})
---     local windows = data:windows{inputs = {fields = {"u"}, steps = {0}}}
---     local statistics = windows:statistics()
---     statistics:denormalize(mh.zeros{1, 1, 2}, "inputs"):tolist()    --> {{{4.5, 4.5}}}
function Statistics:denormalize(x, part)
  local mean, std = scales_of(self, "denormalize", x, part)
  return x * std + mean
end

--- statistics:normalize(x, part) -> Tensor
---   (x - mean) / std of each channel, as a loader with normalize does it.
---   x           Tensor      [batch, channels, space...]
---   part        string|{string}   "inputs", "targets" or "static" of the windows, or names of fields
---   returns     Tensor      the shape of x
---   collective  no for plain tensors; over the mesh of x otherwise
---   errors      ValueError: another number of channels
---   example
---     local data = mh.data.from_tensors({u = mh.arange(10):float():reshape{5, 2}}, {dims = {"time", "x"}})
---     local statistics = data:windows{inputs = {fields = {"u"}, steps = {0}}}:statistics()
---     statistics:normalize(mh.full({1, 1, 2}, 4.5), "inputs"):tolist()    --> {{{0.0, 0.0}}}
function Statistics:normalize(x, part)
  local mean, std = scales_of(self, "normalize", x, part)
  return (x - mean) / std
end

function meta.__tostring(self)
  local lines = {"Statistics"}
  for _, name in ipairs(sorted(self.fields)) do
    local of = self.fields[name]
    for i = 1, #of.mean do
      lines[#lines + 1] = ("  %s%s  mean %.6g  std %.6g  min %.6g  max %.6g  %d values"):format(name, #of.mean > 1
        and "." .. i - 1 or "", of.mean[i], of.std[i], of.min[i], of.max[i], of.count[i])
    end
  end
  return table.concat(lines, "\n")
end

local function check_loaded(loaded, path)
  local function damaged(problem)
    fail(("statistics: '%s' holds no statistics\n  have  %s\n  fix   give the path of a file that save() wrote"):format(
        path, problem))
  end
  if type(loaded) ~= "table" or type(loaded.fields) ~= "table" then damaged("no fields") end
  for _, name in ipairs(sorted(loaded.fields)) do
    for _, column in ipairs {"mean", "std"} do
      local list = type(loaded.fields[name]) == "table" and loaded.fields[name][column]
      if type(list) ~= "table" or #list == 0 then damaged(("no %s of '%s'"):format(column, name)) end
      for _, number in ipairs(list) do
        if type(number) ~= "number" then damaged(("'%s' in %s of '%s'"):format(tostring(number), column, name)) end
      end
    end
  end
  return loaded
end

--- mh.data.load_statistics(path) -> Statistics
---   Statistics that statistics:save(path) wrote.
---   path        string      of the file
---   returns     Statistics   for a loader's normalize
---   collective  over all ranks
---   errors      ValueError: the file cannot be read, or has no statistics
---   example
---     local data = mh.data.from_tensors({u = mh.ones{10, 6}}, {dims = {"time", "x"}})
---     data:windows{inputs = {fields = {"u"}, steps = {0}}}:statistics():save(folder .. "/loaded.json")
---     mh.data.load_statistics(folder .. "/loaded.json").fields.u.max    --> {1.0}
function statistics.load(path)
  if type(path) ~= "string" then
    fail("data.load_statistics: expected a path\n  have  " .. text.of(path)
        .. "\n  fix   give that of a file that save() wrote")
  end
  local content = mh._files.on_first_rank(function()
    if not mh.files.exists(path) then
      fail(("data.load_statistics: no file '%s'\n  fix   give that of a file that save() wrote"):format(path))
    end
    return mh.json.encode(check_loaded(mh.json.load(path), path))
  end)
  return from_table(mh.json.decode(content))
end

local kFacts = {{"samples", "samples"}, {"files", "files"}, {"weights", "weights"},
    {"differences", "kinds (differences or not)"}}

--- Digits for each thing that statistics depend on: the samples, what the files hold, the weights of every place.
local function facts_of(set, options, weights)
  local hash, of_fields = mh._data.hash, {}
  for _, name in ipairs(sorted(weights)) do of_fields[#of_fields + 1] = name .. " " .. hash(weights[name]) end
  local versions = {table.unpack(set.data.versions)}
  for _, one in ipairs(added.versions(set.data, set:fields())) do versions[#versions + 1] = one end
  return {samples = hash(set:_description()), files = hash(table.concat(versions, "\n")),
    weights = hash(table.concat(of_fields, "\n")), differences = tostring(options.differences), read_as = kReadAs}
end

--- The fields of each part of windows, and how many steps it has.
local function parts_of(set)
  local parts = {}
  for _, name in ipairs {"inputs", "targets", "static"} do
    if #set[name].fields > 0 then parts[name] = {fields = set[name].fields, steps = #set[name].steps} end
  end
  return parts
end

--- Kept statistics are those of this set only where all facts are the same.
local function check_kept(path, kept, facts)
  for _, fact in ipairs(kFacts) do
    local name, what = table.unpack(fact)
    local of = type(kept) == "table" and kept[name] or "nothing that says it"
    if of ~= facts[name] then
      fail(("statistics: '%s' holds those of another set: its %s differ\n  have  %s, this one is %s\n" ..
          "  fix   remove the file, or give another path; "
        .. "mh.data.load_statistics takes it as it is"):format(path, what, tostring(of), facts[name]))
    end
  end
  if kept.read_as ~= kReadAs then
    fail(("statistics: '%s' was computed from float32, by an earlier version\n  have  no read_as = \"%s\" in it\n" ..
        "  fix   remove the file, which is written again; mh.data.load_statistics takes it as it is"):format(path,
        kReadAs))
  end
end

--- Statistics of the fields of a set of windows. Options: cache (a path: read from there if they are of this set, of
--- the same files as they are now and of these weights, else written there), weights (the name of a dim of latitudes,
--- whose cosines they are, or a tensor [space...] of numbers of at least 0), differences (true: of targets, what they
--- change from the anchor to each target step, in `fields[name].differences`), of_any_split (a part of a split that is
--- not called train is refused otherwise). Missing values do not count. Collective over all ranks.
function statistics.of(set, ...)
  local options = arguments.read(kStatistics, ...)
  if options.cache ~= nil then arguments.text("statistics", "cache", options.cache) end
  if options.weights ~= nil and not mh.is_tensor(options.weights) then
    arguments.text("statistics", "weights", options.weights)
  end
  if set.name and set.name ~= "train" and not options.of_any_split then
    fail(("statistics: of the part '%s', which training must not know\n  have  a split\n" ..
      "  fix   take those of 'train', or give of_any_split = true"):format(set.name))
  end
  if options.cache then added.check_versions(set.data, set:fields()) end
  local weights = {}
  for _, name in ipairs(set:fields()) do
    weights[name] = weights_of(set.data, options.weights, set.data.fields[name].space_shape)
  end
  local facts = facts_of(set, options, weights)
  mh._data.check_same("statistics", "samples or weights", mh.json.encode(facts))
  if options.cache and mh._files.on_first_rank(function() return mh.files.exists(options.cache) and "there"
      or nil end) then
    local found = statistics.load(options.cache)
    check_kept(options.cache, found.of, facts)
    found.parts = parts_of(set)
    return found
  end
  local fields = {}
  for _, name in ipairs(set:fields()) do
    fields[name] = summary(name, moments_of(set.data, name, frames_of(set, name), weights[name]))
    fields[name].differences = options.differences and differences_of(set, name, weights[name]) or nil
  end
  local self = from_table {fields = fields, of = facts, parts = parts_of(set),
      weights = type(options.weights) == "string" and options.weights or options.weights ~= nil and "given" or "none"}
  if options.cache then self:save(options.cache) end
  return self
end

statistics.meta = meta
return statistics
