-- SPDX-License-Identifier: Apache-2.0
-- Writes about the run itself, by rank 0: the file of --log, one JSON object a line; metrics.jsonl of the run folder;
-- and the latest record, which progress shows. A file of --log that is there is continued: a line {"run": {...}} begins
-- what this run adds.

local mh = require "moonhalo"
local Events = require "moonhalo.internal.event_file"
local groups = require "moonhalo.internal.groups"

local info = mh.run_info()
--- latest: record; run: that of run_folder.lua, nil without one; settings and sources: of the last mh.config;
--- counters: names that are not metrics; save_interval: seconds after which a record also writes run.json.
local run_log = {latest = nil, run = nil, settings = nil, sources = nil, save_interval = 30,
  counters = {step = true, epoch = true, seconds = true}}
local file, metrics, events
local kCounters = run_log.counters

--- Writes strings and flushes.
local function append(target, path, ...)
  local written, problem = target:write(...)
  if written then written, problem = target:flush() end
  if not written then
    local other = path == info.log_file and "give --log another path" or "write the run somewhere else"
    mh.fail(("log: the disk refused '%s': %s\n  fix   free space on that disk, or %s"):format(path, problem, other))
  end
end

local function open()
  local opened, problem = io.open(info.log_file, "a+")
  if not opened then mh.fail("log: cannot write the log file: " .. problem) end
  if opened:seek("end") == 0 then return opened end
  opened:seek("end", -1)
  -- A run that was killed may have left half a line.
  if opened:read(1) ~= "\n" then append(opened, info.log_file, "\n") end
  local started = os.date("!%Y-%m-%dT%H:%M:%SZ")
  local run = {started = started, script = info.script or "", ranks = info.world_size}
  append(opened, info.log_file, mh.json.encode{run = run}, "\n")
  return opened
end

local warned = {}  -- names

--- The name of a number that is not finite; nil for others.
local function not_finite(value)
  if value ~= value then return "nan" end
  return value == math.huge and "inf" or value == -math.huge and "-inf" or nil
end

--- Calls visit(name, text) for every number that is not finite.
local function each_not_finite(value, name, depth, visit)
  if type(value) == "number" and not_finite(value) then visit(name, not_finite(value)) end
  if type(value) ~= "table" or depth > 20 then return end
  for key, element in pairs(value) do
    each_not_finite(element, name == "" and tostring(key) or name .. "." .. tostring(key), depth + 1, visit)
  end
end

--- Warns once for each name, on rank 0: a null in a file may go unseen.
local function warn_not_finite(record)
  if info.rank ~= 0 or mh.backend() == "fake" then return end
  each_not_finite(record, "", 0, function(name, number)
    if warned[name] then return end
    warned[name] = true
    local step = record.step ~= nil and (" at step %s"):format(record.step) or record.epoch ~= nil
        and (" at epoch %s"):format(record.epoch) or ""
    mh._plans.warn(("log: '%s' is %s%s, for which --log has null\n" ..
        "  fix   look at the steps before: a smaller learning rate, "
      .. "opt:clip_gnorm, or data without missing values"):format(name, number, step))
  end)
end

--- Opens metrics.jsonl of the run folder.
function run_log.open_metrics(run)
  local path = run.folder .. "/metrics.jsonl"
  local opened, problem = io.open(path, "a")
  if not opened then mh.fail("run: cannot write the metrics: " .. problem) end
  metrics = {file = opened, path = path}
end

--- Opens an event file in the run folder. `step`: TensorBoard drops what earlier files have from there on.
function run_log.open_events(run, step)
  events = Events.new(run.folder .. "/tb")
  if step then events:restart(step) end
  local lines = {}
  for name, value in pairs(run_log.settings or {}) do
    lines[#lines + 1] = ("    %s = %s"):format(name, mh.json.encode{value}:sub(2, -2))
  end
  if #lines > 0 then events:text(step or 0, "settings", table.concat(lines, "\n")) end
end

--- Adds a picture file of the run to the events.
function run_log.write_picture(run, tag, path)
  if rawget(mh, "_unwritten") then return end  -- a dry run draws no picture
  if not events then run_log.open_events(run) end
  events:picture(run.step, tag, assert(require("moonhalo.internal.run_facts").read(path)))
end

--- Adds a histogram to the events.
function run_log.write_histogram(run, tag, histogram)
  if not events then run_log.open_events(run) end
  events:histogram(run.step, tag, histogram)
end

function run_log.close_events()
  if events then events:finish() end
  events = nil
end

function run_log.close_metrics()
  local closed, problem = metrics.file:close()
  if not closed then mh.fail("run: the disk refused '" .. metrics.path .. "': " .. problem) end
  metrics = nil
end

--- Copies what print and io.write write into a file, too.
function run_log.copy_output(output, path)
  local function copy(text) append(output, path, text) end
  mh._run.copy_output(copy)
  local write = run_log.io_write or io.write
  run_log.io_write = write
  io.write = function(...)
    if run_log.run and io.output() == io.stdout then
      for _, part in ipairs {...} do copy(tostring(part)) end
    end
    return write(...)
  end
end

--- Notes last, least and greatest value of each number of a record. JSON has no numbers that are not finite: the last
--- value is a string then, and the others leave it out.
local function note_extremes(extremes, record)
  for name, value in pairs(groups.flat(record, "", {})) do
    if type(value) == "number" and not kCounters[name] then
      local one = extremes[name] or {}
      extremes[name], one.last = one, not_finite(value) or value
      if one.last == value then
        one.least, one.greatest = math.min(one.least or value, value), math.max(one.greatest or value, value)
      end
    end
  end
end

--- The same of all records.
function run_log.extremes(records)
  local extremes = {}
  for _, record in ipairs(records) do note_extremes(extremes, record) end
  return extremes
end

--- Notes how far a script is that does not count by step_done and epoch_done.
local function note_progress(run, line)
  run.logged_step, run.logged_epoch = math.tointeger(line.step) or run.logged_step, math.tointeger(line.epoch)
      or run.logged_epoch
end

--- A record with the step and the seconds since the run began.
local function write_metrics(run, record)
  local line = {}
  for name, value in pairs(record) do line[name] = value end
  if line.step == nil and run.step > 0 then line.step = run.step end
  if line.seconds == nil then
    line.seconds = math.floor((run.seconds + mh._checkpoint_files.now() - run.began) * 1000 + 0.5) / 1000
  end
  append(metrics.file, metrics.path, mh.json.encode(line), "\n")
  run.lines = run.lines + 1
  note_extremes(run.data.metrics, line)
  note_progress(run, line)
  if not events then run_log.open_events(run) end
  events:scalars(math.tointeger(line.step) or run.lines, record)
  local now = mh._checkpoint_files.now()
  run.saved_at = run.saved_at or now
  if now - run.saved_at >= run_log.save_interval then require("moonhalo.internal.run_folder").save(run) end
end

--- Appends one line to the log file and to the metrics of the run. Nothing on other ranks, but a warning for numbers
--- that are not finite.
function run_log.write(record)
  warn_not_finite(record)
  if info.rank ~= 0 then return end
  if run_log.run then write_metrics(run_log.run, record) end
  if not info.log_file then return end
  file = file or open()
  append(file, info.log_file, mh.json.encode(record), "\n")
end

--- The part of a table that JSON has.
local function plain(values)
  local kept = {}
  for name, value in pairs(values) do
    local kind = type(value)
    if kind == "table" and not getmetatable(value) then
      kept[name] = plain(value)
    elseif kind == "number" or kind == "string" or kind == "boolean" then
      kept[name] = value
    end
  end
  return kept
end

--- The settings of mh.config, for the log file and run.json. `sources`: where each came from, by dotted name.
function run_log.write_settings(settings, sources)
  run_log.settings, run_log.sources = plain(settings), sources
  if info.rank ~= 0 then return end
  if run_log.run then
    run_log.run.data.settings, run_log.run.data.sources = run_log.settings, sources
    require("moonhalo.internal.run_folder").save(run_log.run)
  end
  if not info.log_file then return end
  file = file or open()
  append(file, info.log_file, mh.json.encode{config = settings}, "\n")
end

return run_log
