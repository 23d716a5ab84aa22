-- SPDX-License-Identifier: Apache-2.0
-- Fields of several files as one: steps that follow each other over the borders of files, or trajectories each of its own.
-- A collection is the same on all ranks; making it reads nothing.

local mh = require "moonhalo"
local calendar = require "moonhalo.data.calendar"
local Field = require "moonhalo.data.field"
local sorted = require "moonhalo.internal.sorted_keys"
local text = require "moonhalo.data.text"

local fail = mh.fail
local Collection = {}
local meta = {__index = Collection, __name = "Collection"}

local function differ(what, a, b, of_a, of_b, fix)
  fail(("data.open: two files differ in %s\n  have  %s in '%s'\n  have  %s in '%s'\n  fix   %s"):format(what, of_a, a, of_b, b,
    fix or "open them apart"))
end

local function listed(list) return "(" .. table.concat(list, ", ") .. ")" end

local function check_coordinates(a, b, of_a, of_b)
  if of_a == of_b then return end  -- the same table, as those of many files are
  for _, dim in ipairs(sorted(of_a)) do
    local x, y = of_a[dim], of_b[dim]
    if y and #x ~= #y then differ(("the length of '%s'"):format(dim), a, b, tostring(#x), tostring(#y)) end
    for i = 1, y and #x or 0 do
      if math.abs(x[i] - y[i]) > 1e-6 * math.max(math.abs(x[i]), math.abs(y[i])) then
        differ(("coordinates of '%s', element %d"):format(dim, i - 1), a, b, tostring(x[i]), tostring(y[i]))
      end
    end
  end
end

--- Shapes along all dims but those that files and trajectories share out.
local function check_fields(head, a, b, of_a, of_b)
  if of_a == of_b then return end
  for _, name in ipairs(sorted(of_a)) do
    local x, y = of_a[name], of_b[name]
    if y then
      local what = function(of) return ("%s of '%s'"):format(of, name) end
      if listed(x.dims) ~= listed(y.dims) then differ(what "the dims", a, b, listed(x.dims), listed(y.dims)) end
      for i, dim in ipairs(x.dims) do
        if dim ~= "sample" and dim ~= head.axis and x.shape[i] ~= y.shape[i] then
          differ(what("the shape"), a, b, "[" .. table.concat(x.shape, ", ") .. "]", "[" .. table.concat(y.shape, ", ") .. "]")
        end
      end
      if listed(x.channel_names or {}) ~= listed(y.channel_names or {}) then
        differ(what "the channels", a, b, listed(x.channel_names or {}), listed(y.channel_names or {}))
      end
      if (x.units or "") ~= (y.units or "") then differ(what "the units", a, b, "'" .. (x.units or "") .. "'", "'" .. (y.units or "") .. "'") end
    end
  end
end

local function check_alike(files, heads)
  local first = heads[1]
  for i = 2, #heads do
    local head = heads[i]
    local function compare(what, of_a, of_b)
      if of_a ~= of_b then differ(what, files[1], files[i], tostring(of_a), tostring(of_b)) end
    end
    compare("the name of the axis", first.axis, head.axis)
    compare("the calendar", first.calendar, head.calendar)
    compare("whether they have dates", first.dates or false, head.dates or false)
    compare("whether steps have times", first.times ~= nil, head.times ~= nil)
    compare("the dims of space", listed(first.space), listed(head.space))
    check_coordinates(files[1], files[i], first.coordinates, head.coordinates)
    check_fields(first, files[1], files[i], first.fields, head.fields)
  end
end

--- One run of steps over all files, those with times by time.
local function join_axis(self, heads)
  local order = {}
  for i = 1, #heads do order[i] = i end
  if heads[1].times then
    table.sort(order, function(a, b) return heads[a].times[1] < heads[b].times[1] end)
  elseif not heads[1].axis and #heads > 1 then
    fail(("data.open: %d files and no axis along which they follow each other\n  have  '%s' first\n  fix   give axis = NAME, a dim of the fields")
      :format(#heads, self.files[1]))
  end
  local run = {steps = 0, parts = {}, times = heads[1].times and {} or nil}
  for _, i in ipairs(order) do
    local head, last = heads[i], run.parts[#run.parts]
    if last and run.times and head.times[1] <= run.times[#run.times] then
      fail(("data.open: two files overlap along '%s'\n  have  '%s' until %s\n  have  '%s' from %s\n  fix   leave one of them out"):format(
        self.axis, self.files[last.file], self:time_text(run.times[#run.times]), self.files[i], self:time_text(head.times[1])))
    end
    run.parts[#run.parts + 1] = {file = i, sample = 0, first = run.steps, steps = head.steps}
    if run.times then table.move(head.times, 1, head.steps, #run.times + 1, run.times) end
    run.steps = run.steps + head.steps
  end
  return {run}
end

local function join_trajectories(heads)
  local runs = {}
  for i, head in ipairs(heads) do
    for sample = 0, head.trajectories - 1 do
      runs[#runs + 1] = {steps = head.steps, times = head.times, parts = {{file = i, sample = sample, first = 0, steps = head.steps}}}
    end
  end
  return runs
end

--- The usual step between times: the median of all.
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
    run.stretches = {{0, run.steps}}
    for i = 2, run.times and run.steps or 0 do
      local delta = run.times[i] - run.times[i - 1]
      if delta > kLonger * self.step or delta < kShorter * self.step then
        local last = run.stretches[#run.stretches]
        last[2] = i - 1 - last[1]
        run.stretches[#run.stretches + 1] = {i - 1, run.steps - i + 1}
        gaps[#gaps + 1] = {trajectory = number - 1, step = i - 1, before = run.times[i - 1], after = run.times[i]}
      end
    end
  end
  return gaps
end

--- Makes a collection of what data.open found: {layout, files, versions, heads}.
function Collection.join(found)
  local heads, first = found.heads, found.heads[1]
  local self = setmetatable({layout = found.layout, files = found.files, versions = found.versions, axis = first.axis, space = first.space, calendar = first.calendar,
    dates = first.dates or false, coordinates = first.coordinates, boundary = first.boundary, fields = {}}, meta)
  check_alike(found.files, heads)
  self.runs = first.join == "axis" and join_axis(self, heads) or join_trajectories(heads)
  self.step = usual_step(self.runs)
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
  return self
end

--- A time as text: a date, or a number.
function Collection:time_text(time) return self.dates and calendar.text(time, self.calendar) or tostring(time) end

--- The field `name`, which all files have; `who` begins the error for another.
function Collection:field(name, who)
  local field = self.fields[name]
  if field == nil then
    fail(("%s: no field %s%s\n  have  %s\n  fix   give the name of one of them"):format(who, text.of(name),
      mh.did_you_mean(tostring(name), sorted(self.fields)), table.concat(sorted(self.fields), ", ")))
  end
  if field.missing_in then
    fail(("%s: field '%s' is missing in one file\n  have  it in '%s', not in '%s'\n  fix   leave that file out, or the field"):format(who, name,
      field.found_in, field.missing_in))
  end
  return field
end

--- The file, trajectory of it and step in it, of a step of a run (all from 0, the run too).
function Collection:locate(run, step)
  local parts = self.runs[run + 1].parts
  local low, high = 1, #parts
  while low < high do
    local middle = (low + high + 1) // 2
    if parts[middle].first <= step then low = middle else high = middle - 1 end
  end
  return parts[low].file, parts[low].sample, step - parts[low].first
end

--- Samples of this collection; see windows.lua.
function Collection:windows(...) return require("moonhalo.data.windows")(self, ...) end

--- A text that differs where the collection is another one: names of files and fields, and the steps of all.
function Collection:description()
  local fields = {}
  for _, name in ipairs(sorted(self.fields)) do fields[#fields + 1] = tostring(self.fields[name]) end
  local names = {}
  for i, path in ipairs(self.files) do names[i] = path:match("[^/]*$") end
  local first, last = self.runs[1], self.runs[#self.runs]
  return table.concat({self.layout, table.concat(names, ","), table.concat(fields, ";"), #self.runs, self.steps,
    first.times and first.times[1] or "", last.times and last.times[#last.times] or ""}, "|")
end

function meta.__tostring(self)
  local lines = {("Collection of %d file%s, layout '%s'"):format(#self.files, #self.files == 1 and "" or "s", self.layout)}
  for _, name in ipairs(sorted(self.fields)) do lines[#lines + 1] = "  " .. tostring(self.fields[name]) end
  local times = self.times and (", %s to %s"):format(self:time_text(self.times[1]), self:time_text(self.times[#self.times])) or ""
  local runs = #self.runs > 1 and (" in %d trajectories"):format(#self.runs) or ""
  lines[#lines + 1] = ("  %d steps%s along '%s'%s, %d gap%s"):format(self.steps, runs, tostring(self.axis), times, #self.gaps, #self.gaps == 1 and "" or "s")
  return table.concat(lines, "\n")
end

Collection.meta = meta
return Collection
