-- SPDX-License-Identifier: Apache-2.0
-- mh.log{step = step, loss = loss:item()}: one record of the run. Collective when a value is a ShardTensor.
-- mh.log(x) with a tensor is the logarithm.

local mh = require "moonhalo"
local run_log = require "moonhalo.internal.run_log"

local kWrites = mh.rank() == 0

--- A value that no log could have is an error on all ranks, and without a log, too.
local function check_value(name, value)
  local kind = type(value)
  if kind == "number" or kind == "string" or kind == "boolean" or value == mh.none then return end
  local written, problem = pcall(mh.json.encode, {[name] = value})
  if not written then mh.fail("log: " .. tostring(problem):gsub("^.-json: ", "", 1)) end
end

--- Checks the names of a record, and says whether it has tensors. `next` does not sort the names, as `pairs` does.
local function check(record)
  local has_tensors = false
  for name, value in next, record do
    if type(name) ~= "string" then mh.fail("log: names are strings, got " .. mh._describe(name)) end
    local is_tensor = mh.is_tensor(value)
    has_tensors = has_tensors or is_tensor
    if not is_tensor then check_value(name, value) end
  end
  return has_tensors
end

--- mh.log(record) -> nothing
---   Adds a record to the log: a line of JSON in the file of --log, written by rank 0. mh.progress shows the latest
---   one. A number that is not finite becomes null, with a warning. Of a tensor or a number, mh.log is the logarithm.
---   record      table       values by name: numbers, strings, tensors, tables
---   returns     nothing
---   collective  only where a value is a ShardTensor
---   errors      ValueError: another kind of value, or the disk refuses
---   example
---     mh.log{step = 1, loss = 0.5}
---     mh.log(mh.ones{2}):tolist()    --> {0.0, 0.0}
return function(record, ...)
  if mh.is_tensor(record) then return record:log(...) end
  if type(record) == "number" and (... == nil or type(...) == "number") then return math.log(record, ...) end
  if type(record) == "number" then mh.fail("log: the base is " .. mh._describe((...)) .. ", expected a number") end
  if type(record) ~= "table" then mh.fail("log: expected a table {name = value, ...}, got " .. mh._describe(record)) end
  if not check(record) and not kWrites then return end
  local values = kWrites and {}
  for name, value in pairs(record) do
    if mh.is_tensor(value) and (values or value:is_shard_tensor()) then value = value:tolist() end
    if values then values[name] = value end
  end
  if not values then return end
  run_log.latest = values
  run_log.write(values)
end
