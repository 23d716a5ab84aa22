-- SPDX-License-Identifier: Apache-2.0
-- Reads run folders: run.json and metrics.jsonl, of which a killed run may have left half a line. Used on one rank.

local mh = require "moonhalo"
local facts = require "moonhalo.internal.run_facts"
local groups = require "moonhalo.internal.groups"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local files = {}

local kWho, kMetrics = "run", "metrics.jsonl"

--- run.json of a folder; an error where there is none.
function files.read_run(folder)
  local path = folder .. "/run.json"
  if not mh.files.exists(path) then
    fail(("run: '%s' is not the folder of a run\n  have  no run.json in it\n  fix   give runs/DATE_NAME_XXXX"):format(
        folder))
  end
  local data = mh.json.load(path)
  if type(data) ~= "table" or data.format ~= 1 or type(data.name) ~= "string" or type(data.started) ~= "string" then
    fail(("run: '%s' is not one of this program's\n  have  format %s"):format(path,
      type(data) == "table" and tostring(data.format) or "none"))
  end
  return data
end

--- {folder, name, data} of a run; nil where there is none, as its process was killed before it wrote run.json, and with
--- a warning where that cannot be read.
local function run_of(parent, name)
  local folder = parent .. "/" .. name
  if not mh.files.exists(folder .. "/run.json") then return nil end
  local good, data = pcall(files.read_run, folder)
  if good then return {folder = folder, name = name, data = data} end
  mh._plans.warn(("runs: '%s' is left out\n  have  %s"):format(folder, (tostring(data):gsub("\n.*", ""))))
end

--- {folder, name, data} of all runs in a folder, by the time when they started. `pattern`: of their names.
function files.list(parent, pattern)
  local found = {}
  for _, name in ipairs(mh._run.list(parent) or {}) do
    if name:find(pattern or "") then found[#found + 1] = run_of(parent, name) end
  end
  table.sort(found, function(a, b)
    if a.data.started ~= b.data.started then return a.data.started < b.data.started end
    return a.name < b.name
  end)
  return found
end

--- The status to show: a run whose process is gone was killed.
function files.status(data)
  if data.status == "running" and facts.is_alive(data.process) == false then return "killed" end
  return data.status
end

--- The whole lines of metrics.jsonl; the second result says whether half a line is behind them.
local function lines_of(folder)
  local text, lines = facts.read(folder .. "/" .. kMetrics) or "", {}
  for line in text:gmatch("([^\n]*)\n") do lines[#lines + 1] = line end
  return lines, text ~= "" and text:sub(-1) ~= "\n"
end

local function write_lines(folder, lines)
  mh._files.write(kWho, folder .. "/" .. kMetrics, #lines > 0 and table.concat(lines, "\n") .. "\n" or "")
end

--- Removes half a line at the end, and returns the number of lines.
function files.repair_metrics(folder)
  local lines, half = lines_of(folder)
  if half then write_lines(folder, lines) end
  return #lines
end

--- Marks the lines from `first` to `last` as replaced by those that a resumed run writes again.
function files.mark_replaced(folder, first, last)
  if first > last then return end
  local lines = lines_of(folder)
  for i = first, last do
    local record = mh.json.decode(lines[i])
    record.replaced = true
    lines[i] = mh.json.encode(record)
  end
  write_lines(folder, lines)
end

--- The records of a run that no resumed one has replaced, in order.
function files.read_metrics(folder)
  local records = {}
  for number, line in ipairs((lines_of(folder))) do
    local good, record = pcall(mh.json.decode, line)
    if not good then
      fail(("run: '%s/%s', line %d is not a JSON object\n  fix   remove that line"):format(folder, kMetrics, number))
    end
    if type(record) == "table" and not record.replaced then records[#records + 1] = record end
  end
  return records
end

local function csv_text(value)
  if value == nil then return "" end
  local text = type(value) == "table" and mh.json.encode(value)
      or math.type(value) == "float" and mh.json.encode(value) or tostring(value)
  return text:find('[",\n\r]') and '"' .. text:gsub('"', '""') .. '"' or text
end

--- Comma-separated values: `names`, then a row for each record.
function files.csv(names, records)
  local rows = {}
  local function add(of)
    local cells = {}
    for i, name in ipairs(names) do cells[i] = csv_text(of(name)) end
    rows[#rows + 1] = table.concat(cells, ",")
  end
  add(function(name) return name end)
  for _, record in ipairs(records) do add(function(name) return record[name] end) end
  return table.concat(rows, "\n") .. "\n"
end

--- Writes metrics.csv of the records, a column for each name.
function files.write_csv(folder)
  local records, seen = files.read_metrics(folder), {}
  for i, record in ipairs(records) do
    records[i] = groups.flat(record, "", {})
    for name in pairs(records[i]) do seen[name] = true end
  end
  local names = {}
  for _, first in ipairs {"step", "epoch", "seconds"} do
    if seen[first] then names[#names + 1], seen[first] = first, nil end
  end
  for _, name in ipairs(sorted_keys(seen)) do names[#names + 1] = name end
  if #names > 0 then mh._files.write(kWho, folder .. "/metrics.csv", files.csv(names, records)) end
end

return files
