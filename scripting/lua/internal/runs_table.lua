-- SPDX-License-Identifier: Apache-2.0
-- moonhalo runs: a table of the runs of a folder, from their run.json alone.

local mh = require "moonhalo"
local files = require "moonhalo.internal.run_files"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local runs_table = {}

--- Settings of a run by dotted name.
local function flat(settings, prefix, into)
  for name, value in pairs(settings or {}) do
    if type(value) == "table" and #value == 0 and next(value) ~= nil then
      flat(value, prefix .. name .. ".", into)
    else
      into[prefix .. name] = type(value) == "table" and mh.json.encode(value) or value
    end
  end
  return into
end

runs_table.flat_settings = flat

--- {run, status, seconds, started, epoch, step, ...} of a run, with settings and the last value of each metric;
--- NAME.min and NAME.max are the extremes.
function runs_table.row(one)
  local data = one.data
  local row = {run = one.name, status = files.status(data), seconds = data.seconds, started = data.started,
    epoch = data.epoch, step = data.step, ranks = data.ranks, error = data.error}
  local settings, metrics = flat(data.settings, "", {}), {}
  for name, value in pairs(type(data.metrics) == "table" and data.metrics or {}) do
    metrics[name], row[name], row[name .. ".min"], row[name .. ".max"] = true, value.last, value.least, value.greatest
  end
  for name, value in pairs(settings) do
    if row[name] == nil then row[name] = value end
  end
  return {cells = row, settings = settings, metrics = metrics}
end

--- Names of settings that differ between runs.
function runs_table.different(rows)
  local seen, differ = {}, {}
  for _, row in ipairs(rows) do
    for name in pairs(row.settings) do seen[name] = true end
  end
  for _, name in ipairs(sorted_keys(seen)) do
    for _, row in ipairs(rows) do
      if row.settings[name] ~= rows[1].settings[name] then
        differ[#differ + 1] = name
        break
      end
    end
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

local function check_name(rows, name, option)
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

--- Keeps the runs with `NAME OPERATOR VALUE`.
local function filtered(rows, condition)
  local name, operator, text = condition:match("^%s*([^%s<>=!]+)%s*([<>=!]=?)%s*(.-)%s*$")
  local compare = kCompare[operator]
  if not compare or text == "" then
    fail(("runs: --where '%s' cannot be read\n  fix   write NAME < VALUE, with <, <=, >, >=, = or !="):format(
        condition))
  end
  check_name(rows, name, "--where")
  local kept, number = {}, tonumber(text)
  for _, row in ipairs(rows) do
    local value = row.cells[name]
    local other = number
    if type(value) ~= "number" or number == nil then value, other = value ~= nil and tostring(value), text end
    if value and compare(value, other) then kept[#kept + 1] = row end
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

--- Carries out the command with its options.
function runs_table.main(wanted)
  local rows = {}
  for i, one in ipairs(files.list(wanted.folder)) do rows[i] = runs_table.row(one) end
  if #rows == 0 then
    fail(("runs: '%s' has no runs\n  have  no folder with a run.json\n  fix   moonhalo run --run SCRIPT makes one")
      :format(wanted.folder))
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
