-- SPDX-License-Identifier: Apache-2.0
-- mh.log_all{step = step, seconds_of_step = t}: numbers that each rank has for itself, such as times and memory, as one
-- record of the run.

local mh = require "moonhalo"
local run_log = require "moonhalo.internal.run_log"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail

local function number_of(name, value)
  if mh.is_tensor(value) then
    if value:is_shard_tensor() then
      fail(("log_all: '%s' is a ShardTensor, whose value is the same on all ranks\n  have  %s\n" ..
        "  fix   give it to mh.log, or its block: x:to_local():sum()"):format(name, mh._describe(value)))
    end
    value = value:item()
  end
  if type(value) ~= "number" then
    fail(("log_all: '%s' is %s, expected a number"):format(name, mh._describe(value)))
  end
  return value
end

--- The numbers of this rank by name, without those that count: {names, values}, and the counters.
local function read(record)
  local names, values, counters = {}, {}, {}
  for _, name in ipairs(sorted_keys(record)) do
    if type(name) ~= "string" then fail("log_all: names are strings, got " .. mh._describe(name)) end
    local value = number_of(name, record[name])
    if run_log.counters[name] then
      counters[name] = value
    else
      names[#names + 1], values[#values + 1] = name, value
    end
  end
  return names, values, counters
end

--- The names, then the numbers.
local function pack(names, values)
  local parts = {string.pack("s4", table.concat(names, "\0"))}
  for i, value in ipairs(values) do parts[i + 1] = string.pack("<d", value) end
  return table.concat(parts)
end

--- The numbers of a rank. All have the same names, or it is an error on all.
local function unpack(text, rank, wanted)
  local names, at = string.unpack("s4", text)
  if names ~= wanted then
    local function shown(list) return list == "" and "nothing" or (list:gsub("%z", ", ")) end
    fail(("log_all: ranks give different names\n  have  %s on rank 0, %s on rank %d\n" ..
      "  fix   give the same names on all ranks"):format(shown(wanted), shown(names), rank))
  end
  local values = {}
  while at <= #text do values[#values + 1], at = string.unpack("<d", text, at) end
  return values
end

--- Least, mean and greatest of the ranks' numbers, and the rank of the greatest. NaN is all of them, on its first rank.
local function summary(ranks, i)
  local least, greatest, sum, rank = ranks[1][i], ranks[1][i], 0.0, 0
  for r, values in ipairs(ranks) do
    local value = values[i]
    sum = sum + value
    if greatest == greatest and (value ~= value or value > greatest) then greatest, rank = value, r - 1 end
    least = math.min(least, value)
  end
  return greatest == greatest and least or greatest, sum / #ranks, greatest, rank
end

--- mh.log_all(record) -> table
---   Adds to the log what each rank has for itself, such as times and memory: for each NAME the values NAME/min,
---   NAME/mean and NAME/max over the ranks, and NAME/max_rank, the rank that has the greatest. Where a rank has NaN,
---   they are NaN and NAME/max_rank is that rank. step, epoch and seconds are those of rank 0.
---   record      table       numbers by name, or plain tensors of one element; the same names on all ranks
---   returns     table       what was added to the log, the same on all ranks
---   collective  over all ranks: one gather of 8 bytes for each number
---   errors      ValueError: a ShardTensor, another kind of value, names that differ, or the disk refuses
---   example
---     local record = mh.log_all{step = 1, rows = 4}
---     record["rows/min"], record["rows/mean"], record["rows/max"]    --> 4.0  4.0  4.0
return function(record)
  if type(record) ~= "table" or mh.is_tensor(record) then
    fail("log_all: expected a table {name = number, ...}, got " .. mh._describe(record))
  end
  local names, values, line = read(record)
  local ranks = mh._files.of_all_ranks(pack(names, values))
  local wanted = string.unpack("s4", ranks[1])
  for r, text in ipairs(ranks) do ranks[r] = unpack(text, r - 1, wanted) end
  for i, name in ipairs(names) do
    line[name .. "/min"], line[name .. "/mean"], line[name .. "/max"], line[name .. "/max_rank"] = summary(ranks, i)
  end
  mh.log(line)
  return line
end
