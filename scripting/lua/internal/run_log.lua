-- SPDX-License-Identifier: Apache-2.0
-- Writes about the run itself: the file of --log, one JSON object a line, by rank 0; and the latest record, which
-- progress shows. A file that is there is continued: a line {"run": {...}} begins what this run adds.

local mh = require "moonhalo"

local info = mh.run_info()
local run_log = {latest = nil}
local file

--- Writes texts and flushes.
local function append(target, ...)
  local written, problem = target:write(...)
  if written then written, problem = target:flush() end
  if not written then mh.fail("log: the disk refused '" .. info.log_file .. "': " .. problem) end
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

--- Appends one line to the log file. Nothing without --log or on other ranks.
function run_log.write(record)
  if not info.log_file or info.rank ~= 0 then return end
  file = file or open()
  append(file, mh.json.encode(record), "\n")
end

return run_log
