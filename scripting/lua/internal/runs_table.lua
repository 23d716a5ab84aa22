-- SPDX-License-Identifier: Apache-2.0
-- moonhalo runs: a table of the runs of a folder, from their run.json alone.

local mh = require "moonhalo"
local files = require "moonhalo.internal.run_files"
local groups = require "moonhalo.internal.groups"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local runs_table = {}

--- Settings of a run by dotted name; lists as text.
local function flat_settings(settings)
  local flat = groups.flat(settings or {}, "", {})
  for name, value in pairs(flat) do
    if type(value) == "table" then flat[name] = mh.json.encode(value) end
  end
  return flat
end

--- {run, status, seconds, started, epoch, step, ...} of a run, with settings and the last value of each metric;
--- NAME.min and NAME.max are the extremes. Settings of its point in a sweep are for a run that ended before it read
--- them.
function runs_table.row(one)
  local data = one.data
  local row = {run = one.name, status = files.status(data), seconds = data.seconds, started = data.started,
    epoch = data.epoch, step = data.step, ranks = data.ranks, error = data.error}
  local settings, metrics = flat_settings(data.settings), {}
  local incomplete = next(settings) == nil
  for name, value in pairs(type(data.metrics) == "table" and data.metrics or {}) do
    metrics[name], row[name], row[name .. ".min"], row[name .. ".max"] = true, value.last, value.least, value.greatest
  end
  for name, value in pairs(one.point or {}) do
    if settings[name] == nil then settings[name] = value end
  end
  for name, value in pairs(settings) do
    if row[name] == nil then row[name] = value end
  end
  return {cells = row, settings = settings, metrics = metrics, incomplete = incomplete}
end

--- True if the runs that have read their settings differ in one.
local function differs(rows, name)
  local found, first
  for _, row in ipairs(rows) do
    local value = row.settings[name]
    if value ~= nil or not row.incomplete then
      if found and value ~= first then return true end
      found, first = true, value
    end
  end
  return false
end

--- Names of settings that differ between runs.
function runs_table.different(rows)
  local seen, differ = {}, {}
  for _, row in ipairs(rows) do
    for name in pairs(row.settings) do seen[name] = true end
  end
  for _, name in ipairs(sorted_keys(seen)) do
    if differs(rows, name) then differ[#differ + 1] = name end
  end
  return differ
end

local function columns_of(rows)
  local names, metrics = {"run", "status", "seconds"}, {}
  for _, name in ipairs(runs_table.different(rows)) do names[#names + 1] = name end
  for _, row in ipairs(rows) do
    for name in pairs(row.metrics) do metrics[name] = true end
  end
  for _, name in ipairs(sorted_keys(metrics)) do names[#names + 1] = name end
  return names
end

local function known_names(rows)
  local seen = {}
  for _, row in ipairs(rows) do
    for name in pairs(row.cells) do seen[name] = true end
  end
  return sorted_keys(seen)
end

--- Columns that a table of runs always has, also where no run has a value.
local kAlways = {run = true, status = true, seconds = true, started = true, step = true, epoch = true, ranks = true,
  error = true}

local function check_name(rows, name, option)
  if kAlways[name] then return name end
  for _, row in ipairs(rows) do
    if row.cells[name] ~= nil then return name end
  end
  local known = known_names(rows)
  fail(("runs: %s: no run has '%s'%s\n  have  %s"):format(option, name, mh.did_you_mean(name, known),
    table.concat(known, ", ")))
end

local kCompare = {
  ["<"] = function(a, b) return a < b end, ["<="] = function(a, b) return a <= b end,
  [">"] = function(a, b) return a > b end, [">="] = function(a, b) return a >= b end,
  ["="] = function(a, b) return a == b end, ["=="] = function(a, b) return a == b end,
  ["!="] = function(a, b) return a ~= b end,
}

--- True if a condition holds for a cell. Strings are neither below nor above numbers, so that a loss of nan is not
--- above 1.
local function holds(value, operator, text)
  if value == nil then return false end
  local number = tonumber(text)
  if type(value) == "number" and number then return kCompare[operator](value, number) end
  if (type(value) == "number" or number) and operator:find("[<>]") then return false end
  return kCompare[operator](tostring(value), text)
end

--- Keeps the runs with `NAME OPERATOR VALUE`.
local function filtered(rows, condition)
  local name, operator, text = condition:match("^%s*([^%s<>=!]+)%s*([<>=!]=?)%s*(.-)%s*$")
  if not kCompare[operator] or text == "" then
    fail(("runs: --where '%s' cannot be read\n  fix   write NAME < VALUE, with <, <=, >, >=, = or !="):format(
        condition))
  end
  check_name(rows, name, "--where")
  local kept = {}
  for _, row in ipairs(rows) do
    if holds(row.cells[name], operator, text) then kept[#kept + 1] = row end
  end
  return kept
end

--- Sorts by a column; runs without a value come last.
local function sort(rows, by)
  local descending, name = by:match("^(%-?)(.*)$")
  check_name(rows, name, "--sort")
  for i, row in ipairs(rows) do row.position = i end
  table.sort(rows, function(a, b)
    local one, other = a.cells[name], b.cells[name]
    if one == other then return a.position < b.position end
    if one == nil or other == nil then return other == nil end
    if type(one) ~= type(other) then return type(one) < type(other) end
    if type(one) == "boolean" then one, other = tostring(one), tostring(other) end
    if descending == "-" then return one > other end
    return one < other
  end)
end

function runs_table.text_of(value)
  if value == nil then return "-" end
  if math.type(value) == "float" then
    local text = ("%.5g"):format(value)
    return text
  end
  return (tostring(value):gsub("%c", " "))
end

local function print_table(names, rows)
  local lines, widths, numeric = {names}, {}, {}
  for r, row in ipairs(rows) do
    lines[r + 1] = {}
    for c, name in ipairs(names) do
      lines[r + 1][c] = runs_table.text_of(row.cells[name])
      numeric[c] = numeric[c] or type(row.cells[name]) == "number"
    end
  end
  for c in ipairs(names) do
    widths[c] = 0
    for _, line in ipairs(lines) do widths[c] = math.max(widths[c], utf8.len(line[c]) or #line[c]) end
  end
  for _, line in ipairs(lines) do
    local cells = {}
    for c, text in ipairs(line) do
      local space = (" "):rep(widths[c] - (utf8.len(text) or #text))
      cells[c] = numeric[c] and space .. text or text .. space
    end
    print((table.concat(cells, "  "):gsub("%s+$", "")))
  end
end

--- "lr=1e-3" of a point as a name and a value.
local function value_of(setting)
  local name, text = setting:match("^(.-)=(.*)$")
  if text == "true" or text == "false" then return name, text == "true" end
  return name, tonumber(text) or text
end

--- The settings of the points of a sweep by the names of their runs; empty where the folder is not that of a sweep.
local function points_of(folder)
  local points = {}
  if not mh.files.exists(folder .. "/sweep.json") then return points end
  for i, settings in ipairs(mh.json.load(folder .. "/sweep.json").points) do
    local point = {}
    for _, setting in ipairs(settings) do
      local name, value = value_of(setting)
      point[name] = value
    end
    points[("%04d"):format(i - 1)] = point
  end
  return points
end

local function runs_in(folder)
  local runs, points = files.list(folder), points_of(folder)
  for _, run in ipairs(runs) do run.point = points[run.data.name] end
  return runs
end

--- {folder, name, data, point} of the runs of a folder, with the settings of their points in a sweep; of a folder
--- without runs of its own, such as sweeps/, those of the folders in it.
function runs_table.runs_of(folder)
  local runs = runs_in(folder)
  if #runs > 0 then return runs end
  for _, name in ipairs(mh._run.list(folder) or {}) do
    for _, run in ipairs(runs_in(folder .. "/" .. name)) do
      run.name = name .. "/" .. run.name
      runs[#runs + 1] = run
    end
  end
  return runs
end

--- Carries out the command with its options.
function runs_table.main(wanted)
  local rows = {}
  for i, run in ipairs(runs_table.runs_of(wanted.folder)) do rows[i] = runs_table.row(run) end
  if #rows == 0 then
    fail(("runs: '%s' has no runs\n  have  no folder with a run.json, and none in its folders\n" ..
      "  fix   moonhalo run --run SCRIPT makes one"):format(wanted.folder))
  end
  for _, condition in ipairs(wanted.where) do rows = filtered(rows, condition) end
  if #rows == 0 then
    print("no run is left")
    return
  end
  if wanted.sort ~= "" then sort(rows, wanted.sort) end
  local names = {"run"}
  for name in wanted.columns:gmatch("[^,%s]+") do names[#names + 1] = check_name(rows, name, "--columns") end
  if #names == 1 then names = columns_of(rows) end
  if not wanted.csv then return print_table(names, rows) end
  local cells = {}
  for i, row in ipairs(rows) do cells[i] = row.cells end
  io.write(files.csv(names, cells))
end

return runs_table
