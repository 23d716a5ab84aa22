-- SPDX-License-Identifier: Apache-2.0
-- What a run writes about itself: the file of --log, one JSON object a line, by rank 0; and the latest record, which
-- progress shows.

local mh = require "moonhalo"

local info = mh.run_info()
local run_log = {latest = nil}
local file

--- Appends one line to the log file. Nothing without --log or on other ranks.
function run_log.write(record)
  if not info.log_file or info.rank ~= 0 then return end
  if not file then
    local problem
    file, problem = io.open(info.log_file, "w")
    if not file then mh.fail("log: cannot write the log file: " .. problem) end
  end
  local written, problem = file:write(mh.json.encode(record), "\n")
  if written then written, problem = file:flush() end
  if not written then mh.fail("log: the disk refused '" .. info.log_file .. "': " .. problem) end
end

return run_log
