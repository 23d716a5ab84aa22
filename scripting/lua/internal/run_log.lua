-- SPDX-License-Identifier: Apache-2.0
-- Writes about the run itself: the file of --log, one JSON object a line, by rank 0; and the latest record, which
-- progress shows. A file that is there is continued: a line {"run": {...}} begins what this run adds.

local mh = require "moonhalo"

local info = mh.run_info()
local run_log = {latest = nil}
local file

--- Writes strings and flushes.
local function append(target, ...)
  local written, problem = target:write(...)
  if written then written, problem = target:flush() end
  if not written then
    mh.fail("log: the disk refused '" .. info.log_file .. "': " .. problem
        .. "\n  fix   free space on that disk, or give --log another path")
  end
end

local function open()
  local opened, problem = io.open(info.log_file, "a+")
  if not opened then mh.fail("log: cannot write the log file: " .. problem) end
  if opened:seek("end") == 0 then return opened end
  opened:seek("end", -1)
  -- A run that was killed may have left half a line.
  if opened:read(1) ~= "\n" then append(opened, "\n") end
  local started = os.date("!%Y-%m-%dT%H:%M:%SZ")
  append(opened, mh.json.encode{run = {started = started, script = info.script or "", ranks = info.world_size}}, "\n")
  return opened
end

local warned = {}  -- names

--- Calls visit(name, text) for every number that is not finite.
local function each_not_finite(value, name, depth, visit)
  if type(value) == "number" and (value ~= value or value == math.huge or value == -math.huge) then
    visit(name, value ~= value and "nan" or value > 0 and "inf" or "-inf")
  end
  if type(value) ~= "table" or depth > 20 then return end
  for key, element in pairs(value) do
    each_not_finite(element, name == "" and tostring(key) or name .. "." .. tostring(key), depth + 1, visit)
  end
end

--- Warns once for each name, on rank 0: a null in a file may go unseen.
local function warn_not_finite(record)
  if info.rank ~= 0 then return end
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

--- Appends one line to the log file. Nothing without --log or on other ranks, but a warning for numbers that are not
--- finite.
function run_log.write(record)
  warn_not_finite(record)
  if not info.log_file or info.rank ~= 0 then return end
  file = file or open()
  append(file, mh.json.encode(record), "\n")
end

return run_log
