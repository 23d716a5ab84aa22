-- SPDX-License-Identifier: Apache-2.0
-- Windows over a collection: samples that take some steps before and after one of them, the anchor.
--
--     steps      0 1 2 3 | 4 5 6 7          a file ends after 3: windows go on; a gap in time: none crosses it
--     inputs     {-1, 0}, targets {1}: anchors 1, 2, ..., 6 without a gap; 1, 2 and 5, 6 with one after 3
--
-- A set stores its anchors as runs of equal steps, so a million samples need no memory. Samples count from 0.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local sorted = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"

local fail, signature, optional = mh.fail, arguments.signature, arguments.optional
local Windows = {}
local meta = strict.class {name = "Windows", methods = Windows,
  fields = "count data dropped every gaps high inputs low name pieces starts static targets",
  elements = "samples come in batches: for batch in set:loader{batch = 1}:batches() do"}

local kWindows = signature("windows", {"inputs", optional "targets", {"static", {}}, optional "axis", {"every", 1},
    {"gaps", "skip"}})

local function listed(list) return "{" .. table.concat(list, ", ") .. "}" end

--- The steps of a part, each an integer, each once.
local function check_steps(name, steps)
  local seen = {}
  if type(steps) ~= "table" or #steps == 0 then
    fail(("windows: %s.steps is %s\n  have  steps that count from the anchor, 0\n" ..
        "  fix   give a list such as {-1, 0}"):format(name, text.of(steps)))
  end
  for _, step in ipairs(steps) do
    if math.type(step) ~= "integer" or seen[step] then
      fail(("windows: %s.steps has %s%s\n  have  %s\n" ..
        "  fix   give integers, each once, in the order in which channels shall come"):format(
        name, text.of(step), seen[step] and " twice" or "", mh.json.encode(steps)))
    end
    seen[step] = true
  end
  return steps
end

--- {fields = {names}, steps = {...}, channels}; a list of names alone means their anchors.
local function read_part(data, name, given)
  if type(given) ~= "table" then
    fail(("windows: %s is %s\n  have  %s\n  fix   give {fields = {names}, steps = {...}}, or a list of names"):format(
      name, text.of(given), table.concat(sorted(data.fields), ", ")))
  end
  if rawlen(given) > 0 then given = {fields = given} end
  for key in pairs(given) do
    if key ~= "fields" and key ~= "steps" then
      fail(("windows: unknown '%s.%s'%s\n  have  fields and steps\n" ..
        "  fix   give {fields = {names}, steps = {...}}"):format(name, tostring(key),
        mh.did_you_mean(tostring(key), {"fields", "steps"})))
    end
  end
  local part = {fields = given.fields, steps = check_steps(name, given.steps or {0}), channels = {}}
  if type(part.fields) ~= "table" or #part.fields == 0 then
    fail(("windows: %s names no fields\n  have  %s\n  fix   give fields = {names}"):format(name,
        table.concat(sorted(data.fields), ", ")))
  end
  return part
end

--- Refuses fields that cannot stand in one tensor; names the channels: step by step, field by field.
local function check_part(data, name, part, static)
  local seen = {}
  for _, field_name in ipairs(part.fields) do
    local field = data:_field(field_name, "windows")
    if seen[field_name] then
      fail(("windows: %s names '%s' twice\n  have  %s\n  fix   leave one out"):format(name, field_name,
          listed(part.fields)))
    end
    seen[field_name] = true
    if not field:is_full() then
      fail(("windows: '%s' does not have all dims of space\n  have  %s, space is (%s)\n" ..
        "  fix   leave it out, or give space = {names} to data.open"):format(
        field_name, tostring(field), table.concat(data.space, ", ")))
    end
    if static and field.varies then
      fail(("windows: '%s' is not a static field: it changes along '%s'\n  have  %s\n  fix   name it in inputs"):format(
          field_name, data.axis, tostring(field)))
    elseif not static and not field.varies and data.steps > #data.runs then
      fail(("windows: '%s' does not change along '%s'\n  have  %s\n  fix   name it in static"):format(field_name,
          tostring(data.axis), tostring(field)))
    end
  end
  for _, step in ipairs(part.steps) do
    for _, field_name in ipairs(part.fields) do
      for channel = 0, data.fields[field_name].channels - 1 do
        local names = data.fields[field_name].channel_names
        local of = data.fields[field_name].channels > 1 and "." .. (names and names[channel + 1] or channel) or ""
        part.channels[#part.channels + 1] = static and field_name .. of or ("%s%s@%+d"):format(field_name, of, step)
      end
    end
  end
end

local function reach(parts)
  local low, high = 0, 0
  for _, part in ipairs(parts) do
    for _, step in ipairs(part.steps) do low, high = math.min(low, step), math.max(high, step) end
  end
  return low, high
end

--- windows.inputs -> table
---   What a sample takes from the fields: {fields, steps, channels}; `channels` has the names of the channels of a
---   batch, in their order.
---   example
---     local data = mh.data.from_tensors({u = mh.rand{5, 4}}, {dims = {"time", "x"}})
---     data:windows{inputs = {fields = {"u"}, steps = {-1, 0}}}.inputs.channels    --> {"u@-1", "u@+0"}

--- windows.targets -> table
---   The same of the targets; without targets its lists are empty.
---   example
---     local data = mh.data.from_tensors({u = mh.rand{5, 4}}, {dims = {"time", "x"}})
---     #data:windows{inputs = {fields = {"u"}, steps = {0}}}.targets.channels    --> 0

--- windows.dropped -> integer?
---   After split: how many windows were left out, because they reach from one part into another.
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 4}}, {dims = {"time", "x"}})
---     local set = data:windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}
---     local train, valid = set:split{train = 0.5, valid = 0.5}
---     #train, #valid, train.dropped + valid.dropped    --> 4  4  1

--- A set of the same windows over other anchors: pieces = {{run, first, count}, ...}.
function Windows:_over(pieces, name)
  local set = {}
  for key, value in pairs(self) do set[key] = value end
  setmetatable(set, meta)
  set.pieces, set.name, set.count, set.starts = pieces, name, 0, {}
  for i, piece in ipairs(pieces) do
    set.starts[i], set.count = set.count, set.count + piece.count
  end
  return set
end

--- Samples of a collection. `inputs` and `targets` are {fields = {names}, steps = {integers, 0 the anchor}}, or a
--- list of names; `static` names fields that do not change. Options: every (1: each step is an anchor; 2: each
--- second), gaps ("skip": no window crosses one; "error"). No window crosses from one trajectory to another. The
--- same on all ranks; reads nothing.
local function windows(data, ...)
  local options = arguments.read(kWindows, ...)
  if options.axis and options.axis ~= data.axis then
    fail(("windows: the steps follow '%s'\n  have  axis = '%s'\n" ..
      "  fix   leave axis out, or give it to data.open"):format(tostring(data.axis), text.of(options.axis)))
  end
  arguments.choice("windows", "gaps", options.gaps, {"skip", "error"})
  if math.type(options.every) ~= "integer" or options.every < 1 then
    fail(("windows: every is %s\n  have  steps that count from 0\n  fix   give an integer of at least 1"):format(
        text.of(options.every)))
  end
  if options.gaps == "error" and #data.gaps > 0 then
    local gap = data.gaps[1]
    fail(("windows: %d gap%s along '%s'\n  have  the first after step %d: from %s to %s\n" ..
      "  fix   add what is missing, or leave gaps = \"error\" out"):format(
      #data.gaps, #data.gaps == 1 and "" or "s", data.axis, gap.step - 1, data:time_text(gap.before, gap.trajectory),
        data:time_text(gap.after, gap.trajectory)))
  end
  local self = setmetatable({data = data, every = options.every, gaps = options.gaps}, meta)
  self.inputs = read_part(data, "inputs", options.inputs)
  self.targets = options.targets and read_part(data, "targets", options.targets)
      or {fields = {}, steps = {}, channels = {}}
  local static = options.static
  if type(static) ~= "table" or getmetatable(static) or #static == 0 and next(static) ~= nil then
    fail(("windows: static is %s\n  have  %s\n  fix   give a list of names"):format(text.of(static),
        table.concat(sorted(data.fields), ", ")))
  end
  self.static = {fields = static, steps = {0}, channels = {}}
  for _, name in ipairs {"inputs", "targets", "static"} do check_part(data, name, self[name], name == "static") end
  self.low, self.high = reach {self.inputs, self.targets}
  local pieces, longest = {}, 0
  for number, run in ipairs(data.runs) do
    for _, stretch in ipairs(run.stretches) do
      local count = stretch[2] - (self.high - self.low)
      longest = math.max(longest, stretch[2])
      if count > 0 then
        pieces[#pieces + 1] = {run = number - 1, first = stretch[1] - self.low,
            count = (count + self.every - 1) // self.every}
      end
    end
  end
  if #pieces == 0 then
    fail(("windows: a window of %d steps (%d to %d) is longer than what there is\n" ..
        "  have  at most %d steps along '%s' without a gap\n  fix   take smaller "
      .. "steps or leads, or more files"):format(self.high - self.low + 1, self.low, self.high, longest,
          tostring(data.axis)))
  end
  return self:_over(pieces)
end

--- windows:at(i) -> integer
---   The trajectory of a sample; a second result is its anchor step.
---   i           integer     the sample, from 0
---   returns     integer     trajectory and step, from 0
---   collective  no
---   errors      ValueError: there is no such sample
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 4}}, {dims = {"time", "x"}})
---     data:windows{inputs = {fields = {"u"}, steps = {-1, 0}}}:at(0)    --> 0  1
function Windows:at(i)
  if math.type(i) ~= "integer" or i < 0 or i >= self.count then
    fail(("windows: no sample %s\n  have  %d, which count from 0"):format(text.of(i), self.count))
  end
  local low, high = 1, #self.pieces
  while low < high do
    local middle = (low + high + 1) // 2
    if self.starts[middle] <= i then low = middle else high = middle - 1 end
  end
  local piece = self.pieces[low]
  return piece.run, piece.first + (i - self.starts[low]) * self.every
end

--- windows:time(i) -> string|number
---   The time of a sample's anchor.
---   i           integer     the sample, from 0
---   returns     string|number   a date, a number, or the step where there are no times
---   collective  no
---   errors      ValueError: there is no such sample
---   example
---     local data = mh.data.from_tensors({u = mh.rand{3, 4}}, {dims = {"time", "x"}, times = {10, 20, 30}})
---     tonumber(data:windows{inputs = {fields = {"u"}, steps = {0}}}:time(1))    --> 20
function Windows:time(i)
  local run, anchor = self:at(i)
  local times = self.data.runs[run + 1].times
  return times and self.data:time_text(times[anchor + 1], run) or tostring(anchor)
end

--- windows:fields() -> {string}
---   The names of all fields that samples have, each once.
---   returns     {string}    inputs, targets and static fields
---   collective  no
---   example
---     local data = mh.data.from_tensors({u = mh.rand{3, 4}}, {dims = {"time", "x"}})
---     data:windows{inputs = {fields = {"u"}, steps = {0}}}:fields()    --> {"u"}
function Windows:fields()
  local seen = {}
  for _, part in ipairs {self.inputs, self.targets, self.static} do
    for _, name in ipairs(part.fields) do seen[name] = true end
  end
  return sorted(seen)
end

--- Names of all fields that are read for samples, each once: those that functions make are made of others.
function Windows:_leaves()
  local made, seen = require "moonhalo.data.made", {}
  for _, name in ipairs(self:fields()) do
    for _, leaf in ipairs(made.leaves(self.data, name)) do seen[leaf] = true end
  end
  return sorted(seen)
end

--- A string that differs where the samples are others.
function Windows:_description()
  local parts = {self.data:_description(), "every " .. self.every}
  for _, part in ipairs {self.inputs, self.targets, self.static} do
    parts[#parts + 1] = table.concat(part.channels, ",")
  end
  for _, piece in ipairs(self.pieces) do
    parts[#parts + 1] = ("%d:%d:%d"):format(piece.run, piece.first, piece.count)
  end
  return table.concat(parts, "|")
end

--- windows:split(parts) -> Windows
---   Divides the samples into sets such that no window of one set reads steps of another.
---   parts       table       by name, such as {train = {"1979", "2015"}, valid = {"2016", "2017"}} (times; a year is
---     all of it), or fractions {train = 0.8, valid = 0.2, by = "sample"}; by is "sample", "trajectory" or "file"
---   returns     Windows     one result for each part: train, valid, test, then others by name
---   collective  no; the same on all ranks
---   errors      ValueError: parts that overlap, or an empty one
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 4}}, {dims = {"time", "x"}})
---     local windows = data:windows{inputs = {fields = {"u"}, steps = {0}}}
---     local train, valid = windows:split{train = 0.8, valid = 0.2, by = "sample"}
---     #train > #valid    --> true
function Windows:split(parts)
  local plain = type(parts) == "table" and not getmetatable(parts)
  for _, part in pairs(plain and parts or {}) do
    local kind = type(part)
    plain = plain and (kind == "number" or kind == "string" or (kind == "table" and not getmetatable(part)))
  end
  if not plain then
    fail("split: expected parts by name, got " .. text.of(parts) .. "\n  fix   give {train = 0.8, valid = 0.2}")
  end
  return require("moonhalo.data.split")(self, parts)
end

--- windows:statistics({cache = nil, weights = nil, differences = false, of_any_split = false}) -> Statistics
---   Mean, standard deviation, minimum and maximum of the fields of the samples; missing values do not count. Each rank
---   reads a share.
---   cache       string?     path of a file that keeps them, as long as files and samples are the same
---   weights     string|Tensor?   name of a dim of latitudes, whose cosines weight the places, or weights [space...]
---   differences   boolean   also of the change of targets from the anchor to each target step
---   of_any_split   boolean   allows a part of a split that is not called train
---   returns     Statistics   statistics.fields[name].mean, .std, .min, .max by channel
---   collective  over all ranks
---   errors      ValueError: a part of a split that is not train, or a field without values
---   example
---     local data = mh.data.from_tensors({u = mh.arange(40):float():reshape{10, 4}}, {dims = {"time", "x"}})
---     local windows = data:windows{inputs = {fields = {"u"}, steps = {0}}}
---     windows:statistics().fields.u.mean    --> {19.5}
function Windows:statistics(...) return require("moonhalo.data.statistics").of(self, ...) end

--- windows:loader({mesh = nil, cut = {}, batch = 1, shuffle = false, seed = 0, drop_last = false, normalize = nil,
---     missing = nil, prefetch = 2, memory = "1GiB", dtype = "float32", transform = nil}) -> Loader
---   Batches of the samples. Each rank reads the blocks that it gets, and a thread reads ahead.
---   mesh        DeviceMesh?   nil gives plain batches
---   cut         table       by dim of space, and "batch": the mesh dim that cuts it, {lat = "domain"}, or {mesh dim,
---     sizes}
---   batch       integer     samples of all ranks together
---   shuffle     boolean|"chunks"   "chunks" keeps samples of a compressed chunk near each other
---   seed        integer     of the order
---   drop_last   boolean     leaves out a smaller last batch
---   normalize   Statistics?   gives (value - mean) / std of each channel
---   missing     table|"keep"?   nil: a missing value is an error; {fill = number, mask = true}
---   prefetch    integer     batches that are read ahead
---   memory      string      what a rank may hold at once
---   dtype       string      of the tensors
---   transform   function?   transform(batch, place) returns the batch, or another table; called without gradients
---   returns     Loader      #loader is the number of batches of an epoch
---   collective  over all ranks
---   errors      ValueError: a batch larger than the set, an unknown option, dims that are not there
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 6}}, {dims = {"time", "x"}})
---     local windows = data:windows{inputs = {fields = {"u"}, steps = {0}}, targets = {fields = {"u"}, steps = {1}}}
---     local loader = windows:loader{mesh = mesh, cut = {x = "domain"}, batch = 3, shuffle = true}
---     for batch in loader:batches() do print(batch.inputs.shape) end    --> {3, 1, 6} | {3, 1, 6} | {3, 1, 6}
function Windows:loader(...) return require("moonhalo.data.loader")(self, ...) end

function meta.__len(self) return self.count end

function meta.__tostring(self)
  local dropped = self.dropped and (", %d at its borders dropped"):format(self.dropped) or ""
  return ("Windows%s: %d samples, %s to %s%s\n  inputs   %s\n  targets  %s\n  static   %s"):format(self.name and " '"
    .. self.name .. "'" or "",
    self.count, self:time(0), self:time(self.count - 1), dropped, table.concat(self.inputs.channels, " "),
    table.concat(self.targets.channels, " "), table.concat(self.static.channels, " "))
end

return windows
