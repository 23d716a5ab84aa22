-- SPDX-License-Identifier: Apache-2.0
-- Fields of several files as one: steps that follow each other over the borders of files, or trajectories each of its
-- own. A collection is the same on all ranks; making it reads nothing.

local mh = require "moonhalo"
local alike = require "moonhalo.data.alike"
local calendar = require "moonhalo.data.calendar"
local Field = require "moonhalo.data.field"
local sorted = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"
local text = require "moonhalo.data.text"

local fail = mh.fail
local Collection = {}
local meta = strict.class {name = "Collection", methods = Collection,
  fields = "axis boundary calendar coordinates dates fields files first_steps gaps guessed lacking layer_of_field " ..
  "layout runs space static_file step steps times versions",
  elements = "a field is data.fields.NAME, a step of it data.fields.NAME:read(step)"}

--- data.layout -> string
---   How the files were understood: "cf", "makani", "well", "pdebench", "plain", or the name of a layout of your own.
---   example
---     mh.data.from_tensors({u = mh.rand{3, 4}}, {dims = {"time", "x"}}).layout    --> tensors

--- data.fields -> table
---   The fields by name: data.fields.NAME has dims and units, and :read(step).
---   example
---     local data = mh.data.from_tensors({u = mh.rand{3, 4}}, {dims = {"time", "x"}})
---     data.fields.u:read(0).shape    --> {1, 4}

--- data.steps -> integer
---   The number of steps of all trajectories together.
---   example
---     mh.data.from_tensors({u = mh.rand{2, 3, 4}}, {dims = {"sample", "time", "x"}}).steps    --> 6

--- data.times -> {number}?
---   The times of the steps: seconds since 1970 where they are dates, else the numbers of the file. nil where there are
---   none, and where trajectories have times of their own. With a calendar, data.calendar, they can be written as they
---   are: units "seconds since 1970-01-01", in float64.
---   example
---     mh.data.from_tensors({u = mh.rand{2, 4}}, {dims = {"time", "x"}, times = {10, 20}}).times    --> {10, 20}

--- data.dates -> boolean
---   Whether times are dates.
---   example
---     mh.data.from_tensors({u = mh.rand{2, 4}}, {dims = {"time", "x"}, times = {10, 20}}).dates    --> false

--- data.calendar -> string?
---   The calendar of the dates: "standard", "noleap", "360_day", ...; nil where times are not dates.
---   example
---     local options = {dims = {"time", "x"}, times = {0, 86400}, calendar = "noleap"}
---     mh.data.from_tensors({u = mh.rand{2, 4}}, options).calendar    --> noleap

--- data.gaps -> table
---   Where times are further apart than usual: a list of {trajectory, step, before, after}.
---   example
---     local options = {dims = {"time", "x"}, times = {0, 1, 2, 9}}
---     #mh.data.from_tensors({u = mh.rand{4, 4}}, options).gaps    --> 1

--- One run of steps over the files of these numbers, those with times by time.
local function join_files(self, heads, numbers)
  local order = {table.unpack(numbers)}
  if heads[order[1]].times then
    table.sort(order, function(a, b) return heads[a].times[1] < heads[b].times[1] end)
  elseif not self.axis and #order > 1 then
    fail(("data.open: %d files and no axis along which they follow each other\n  have  '%s' first\n" ..
        "  fix   give axis = NAME, a dim of the fields")
      :format(#order, self.files[1]))
  end
  local run = {steps = 0, parts = {}, times = heads[order[1]].times and {} or nil}
  for _, i in ipairs(order) do
    local head, last = heads[i], run.parts[#run.parts]
    if last and run.times and head.times[1] <= run.times[#run.times] then
      fail(("data.open: two files overlap along '%s'\n  have  '%s' until %s\n  have  '%s' from %s\n" ..
        "  fix   leave one of them out"):format(
        self.axis, self.files[last.file], self:time_text(run.times[#run.times]), self.files[i],
          self:time_text(head.times[1])))
    end
    run.parts[#run.parts + 1] = {file = i, sample = 0, first = run.steps, steps = head.steps}
    if run.times then table.move(head.times, 1, head.steps, #run.times + 1, run.times) end
    run.steps = run.steps + head.steps
  end
  return run
end

local function is_static(field, head)
  if head.scalar_axis then return false end
  for _, dim in ipairs(field.dims) do
    if dim == head.axis then return false end
  end
  return true
end

--- Lists of numbers of files, each with `fields`: those that change along the axis and are in just these files.
local function lists_of(heads, static)
  local files_of, lists, by_key, all = {}, {}, {}, {fields = {}}
  for i, head in ipairs(heads) do
    if not static[i] then all[#all + 1] = i end
    for name, field in pairs(not static[i] and head.fields or {}) do
      if not is_static(field, head) then
        files_of[name] = files_of[name] or {}
        table.insert(files_of[name], i)
      end
    end
  end
  for _, name in ipairs(sorted(files_of)) do
    local key = table.concat(files_of[name], ",")
    if not by_key[key] then
      by_key[key], files_of[name].fields = files_of[name], {}
      lists[#lists + 1] = files_of[name]
    end
    table.insert(by_key[key].fields, name)
  end
  if #lists == 0 then lists[1] = all end
  table.sort(lists, function(a, b) return a[1] < b[1] or a[1] == b[1] and a.fields[1] < b.fields[1] end)
  return lists
end

--- A file of list `a` that list `b` lacks, if they have another in common.
local function lacking(a, b)
  local of_b, shared, found = {}, false, nil
  for _, file in ipairs(b) do of_b[file] = true end
  for _, file in ipairs(a) do
    shared = shared or of_b[file]
    if not of_b[file] then found = found or file end
  end
  return shared and found
end

--- True where two runs have the same steps; else which differs first, from 1, if there are as many.
local function same_steps(a, b)
  if a.steps ~= b.steps then return false end
  for i = 1, a.times and a.steps or 0 do
    if math.abs(a.times[i] - b.times[i]) > 1e-9 * math.max(math.abs(a.times[i]), 1) then return false, i end
  end
  return true
end

local function refuse_steps(self, a, b, step)
  local function words(run)
    local times = run.times and (", %s to %s"):format(self:time_text(run.times[1]),
        self:time_text(run.times[run.steps])) or ""
    return ("%d steps%s from '%s'"):format(run.steps, times, self.files[run.parts[1].file])
  end
  fail(("data.open: files of other fields differ in their steps along '%s'\n  have  %s\n  have  %s%s\n" ..
      "  fix   give files of the same steps, or "
    .. "open them apart"):format(tostring(self.axis), words(a), words(b),
    step and (", of which step %d differs: %s and %s"):format(step - 1, self:time_text(a.times[step]),
      self:time_text(b.times[step])) or ""))
end

--- One run of steps over all files. Files of one field follow each other, files of other fields are beside them,
--- over the same steps. A field that lacks some of the files it shares with others is known, and an error where it
--- is used.
local function join_axis(self, heads, static)
  local lists, runs, main = lists_of(heads, static), {}, 1
  for i, list in ipairs(lists) do
    runs[i] = join_files(self, heads, list)
    if runs[i].steps > runs[main].steps then main = i end
  end
  local run = {steps = runs[main].steps, times = runs[main].times, parts = runs[main].parts, layers = {}}
  self.layer_of_field, self.lacking = {}, {}
  for i, list in ipairs(lists) do
    local same, step = same_steps(runs[main], runs[i])
    local lacks = not same and lacking(lists[main], list)
    if not same and not lacks then refuse_steps(self, runs[main], runs[i], step) end
    run.layers[i] = runs[i].parts
    for _, name in ipairs(list.fields) do
      self.layer_of_field[name], self.lacking[name] = i, lacks and self.files[lacks] or nil
    end
  end
  return {run}
end

local function join_trajectories(heads, static)
  local runs = {}
  for i, head in ipairs(heads) do
    for sample = 0, static[i] and -1 or head.trajectories - 1 do
      runs[#runs + 1] = {steps = head.steps, times = head.times_of and head.times_of[sample + 1] or head.times,
          calendar = head.calendar, dates = head.dates or false,
            parts = {{file = i, sample = sample, first = 0, steps = head.steps}}}
    end
  end
  return runs
end

--- The usual step between times of runs: the median of all.
local function usual_step(runs)
  local deltas, seen = {}, {}
  for _, run in ipairs(runs) do
    if run.times and not seen[run.times] then
      seen[run.times] = true
      for i = 2, run.steps do deltas[#deltas + 1] = run.times[i] - run.times[i - 1] end
    end
  end
  if #deltas == 0 then return nil end
  table.sort(deltas)
  return deltas[(#deltas + 1) // 2]
end

-- Months and years differ in length by a tenth, a step that is left out makes one twice as long.
local kLonger, kShorter = 1.5, 0.5

--- The last step of every stretch without a gap, from 1, of all runs: `run.stretches` = {{first, count}, ...} from 0.
local function find_stretches(self)
  local gaps = {}
  for number, run in ipairs(self.runs) do
    local usual = run.step or self.step
    run.stretches = {{0, run.steps}}
    for i = 2, run.times and run.steps or 0 do
      local delta = run.times[i] - run.times[i - 1]
      if delta > kLonger * usual or delta < kShorter * usual then
        local last = run.stretches[#run.stretches]
        last[2] = i - 1 - last[1]
        run.stretches[#run.stretches + 1] = {i - 1, run.steps - i + 1}
        gaps[#gaps + 1] = {trajectory = number - 1, step = i - 1, before = run.times[i - 1], after = run.times[i]}
      end
    end
  end
  return gaps
end

--- Makes a collection of what data.open found: {layout, files, versions, heads}. `may_differ`: {units = true, ...}.
function Collection._join(found, may_differ)
  local heads, static, number = alike(found.files, found.heads, may_differ or {})
  local first = heads[number]
  local self = setmetatable({layout = found.layout, files = found.files, versions = found.versions, axis = first.axis,
    space = first.space, calendar = first.calendar,
    dates = first.dates or false, coordinates = {}, boundary = first.boundary, fields = {}, static_file = static,
      guessed = first.guessed or false}, meta)
  for _, head in ipairs(heads) do
    for dim, values in pairs(head.coordinates) do self.coordinates[dim] = self.coordinates[dim] or values end
  end
  for dim, values in pairs(first.coordinates) do self.coordinates[dim] = values end
  self.runs = first.join == "axis" and join_axis(self, heads, static) or join_trajectories(heads, static)
  self.step = usual_step(self.runs)
  for _, run in ipairs(may_differ and may_differ.times and self.runs or {}) do run.step = usual_step{run} end
  self.gaps = find_stretches(self)
  for i, head in ipairs(heads) do
    for name in pairs(head.fields) do
      self.fields[name] = self.fields[name] or Field.new(self, name, found.files, heads)
    end
  end
  self.times = #self.runs == 1 and self.runs[1].times or nil
  self.steps, self.first_steps = 0, {}
  for i, run in ipairs(self.runs) do
    self.first_steps[i], self.steps = self.steps, self.steps + run.steps
  end
  strict.table("data.fields", self.fields, "name a field of the files, or add one by data:add_field")
  strict.table("data.coordinates", self.coordinates, "name a dim that has coordinates")
  return self
end

--- data:time_text(time, run = nil) -> string
---   A time of the collection as a string.
---   time        number      as in data.times
---   run         integer?    its trajectory, from 0, which may have a calendar of its own
---   returns     string      the date where times are dates, else the number
---   collective  no
---   example
---     local data = mh.data.from_tensors({u = mh.rand{3, 4}}, {dims = {"time", "x"}, times = {10, 20, 30}})
---     tonumber(data:time_text(data.times[2]))    --> 20
function Collection:time_text(time, run)
  local of = run and self.runs[run + 1].dates ~= nil and self.runs[run + 1] or self
  return of.dates and calendar.text(time, of.calendar) or tostring(time)
end

--- The field `name`, which all files have; `who` begins the error for another.
function Collection:_field(name, who)
  local field = type(name) == "string" and rawget(self.fields, name) or nil
  if field == nil then
    fail(("%s: no field %s%s\n  have  %s\n  fix   give the name of one of them"):format(who, text.of(name),
      type(name) == "string" and mh.did_you_mean(name, sorted(self.fields)) or "",
        table.concat(sorted(self.fields), ", ")))
  end
  if field.missing_in then
    fail(("%s: field '%s' is missing in one file\n  have  it in '%s', not in '%s'\n" ..
      "  fix   leave that file out, or the field"):format(who, name, field.found_in, field.missing_in))
  end
  return field
end

--- The file, trajectory of it and step in it, of a step of a run (all from 0, the run too), for `field`: fields may
--- be in files of their own. Without a field: in the first file's list.
function Collection:_locate(run, step, field)
  if field and field.static_file then
    return field.static_file, field.sample_at and run or 0, field.varies and step or 0
  end
  local of = self.runs[run + 1]
  local parts = of.layers and field and field.layer and of.layers[field.layer] or of.parts
  local low, high = 1, #parts
  while low < high do
    local middle = (low + high + 1) // 2
    if parts[middle].first <= step then low = middle else high = middle - 1 end
  end
  return parts[low].file, parts[low].sample, step - parts[low].first
end

--- data:add_field(name, {values = nil, dims = nil, from = nil, make = nil, channels = 1, units = nil,
---     version = nil}) -> Field
---   Adds a field that no file has: a tensor, or what a function makes of other fields. The function is called for the
---   frames of a batch, of ShardTensors that are cut as the batch; it must treat each frame by itself and draw no
---   random numbers.
---   name        string      a new name
---   values      Tensor?     plain, the same on all ranks; it must not be changed
---   dims        {string}?   names of its dims; nil means those of space
---   from        {string}?   the fields that make takes
---   make        function?   make(values of the first, ..., place) -> [frames, channels, space...]; place has
---     coordinates and rows by dim, and times, steps and trajectories by frame
---   channels    integer     that make gives
---   units       string?     of the field
---   version     string?     changes with the function; needed to keep statistics of the field
---   returns     Field       also data.fields[name]
---   collective  over all ranks
---   errors      ValueError: the name is there already, or shapes do not fit
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 4}}, {dims = {"time", "x"}})
---     data:add_field("square", {from = {"u"}, make = function(u) return u * u end})
---     local windows = data:windows{inputs = {fields = {"square"}, steps = {0}}}
---     for batch in windows:loader{batch = 10}:batches() do print(batch.inputs) end
---     #windows    --> 10
function Collection:add_field(...) return require("moonhalo.data.added_fields").add(self, ...) end

--- data:windows(inputs, {targets = nil, static = {}, axis = nil, every = 1, gaps = "skip"}) -> Windows
---   Samples of the collection: which fields at which steps before and after an anchor step. Reads nothing. No window
---   crosses from one trajectory to another.
---   inputs      table       {fields = {names}, steps = {0, -1}}, steps relative to the anchor; a list of names means
---     step 0
---   targets     table?      the same form
---   static      {string}    fields that do not change with time
---   axis        string?     the dim of the steps, to check that it is the one that is meant
---   every       integer     each step is an anchor, or each second, ...
---   gaps        "skip"|"error"   what happens where times are missing
---   returns     Windows     #windows is the number of samples
---   collective  no; the same on all ranks
---   errors      ValueError: an unknown field, or steps that no trajectory has
---   example
---     local data = mh.data.from_tensors({u = mh.rand{10, 4}}, {dims = {"time", "x"}})
---     #data:windows{inputs = {fields = {"u"}, steps = {-1, 0}}, targets = {fields = {"u"}, steps = {1}}}    --> 8
function Collection:windows(...) return require("moonhalo.data.windows")(self, ...) end

--- A string that differs where the collection is another one: names of files and fields, and the steps of all.
function Collection:_description()
  local fields = {}
  for _, name in ipairs(sorted(self.fields)) do
    fields[#fields + 1] = tostring(self.fields[name]) .. (self.fields[name].version or "")
  end
  local names = {}
  for i, path in ipairs(self.files) do names[i] = path:match("[^/]*$") end
  local first, last = self.runs[1], self.runs[#self.runs]
  return table.concat({self.layout, table.concat(names, ","), table.concat(fields, ";"), #self.runs, self.steps,
    first.times and first.times[1] or "", last.times and last.times[#last.times] or ""}, "|")
end

function meta.__tostring(self)
  local lines = {("Collection of %d file%s, layout '%s'"):format(#self.files, #self.files == 1 and "" or "s",
      self.layout)}
  if self.layout == "tensors" then lines[1] = "Collection of tensors" end
  for _, name in ipairs(sorted(self.fields)) do lines[#lines + 1] = "  " .. tostring(self.fields[name]) end
  local times = self.times and (", %s to %s%s"):format(self:time_text(self.times[1]),
    self:time_text(self.times[#self.times]), self.dates and "" or " (numbers, no dates)") or ""
  local runs = #self.runs > 1 and (" in %d trajectories"):format(#self.runs) or ""
  lines[#lines + 1] = ("  %d steps%s along '%s'%s, %d gap%s"):format(self.steps, runs, tostring(self.axis), times,
      #self.gaps, #self.gaps == 1 and "" or "s")
  local calendars = {}
  for _, run in ipairs(self.runs) do calendars[run.dates and run.calendar or "none"] = run.dates ~= nil or nil end
  if #sorted(calendars) > 1 then
    lines[#lines + 1] = "  calendars " .. table.concat(sorted(calendars), ", ") .. ", each of its trajectories"
  end
  if self.guessed then
    lines[#lines + 1] = '  names of dims are a guess: dims = {"sample", "time", "y", "x"} says others'
  end
  return table.concat(lines, "\n")
end

Collection.meta = meta
return Collection
