-- SPDX-License-Identifier: Apache-2.0
-- mh.cut_sizes: block sizes by work instead of by rows.

local mh = require "moonhalo"
local text = require "moonhalo.data.text"

local fail = mh.fail

local function numbers(name, value, least)
  local list = mh.is_tensor(value) and value:double():tolist() or value
  if type(list) ~= "table" or getmetatable(list) or #list == 0 then
    fail(("cut_sizes: %s is %s\n  have  no numbers\n  fix   give a list or a tensor [n]"):format(name, text.of(list)))
  end
  for i, number in ipairs(list) do
    if type(number) ~= "number" or not (number >= least) or number == math.huge then
      fail(("cut_sizes: %s has %s at %d\n  have  %d of them\n  fix   give finite numbers, none below %g"):format(name,
          text.of(number), i - 1, #list, least))
    end
  end
  return list
end

--- Sizes of blocks whose time is at most `limit`: each as long as it may be, or nil where that does not reach the end.
--- With `all`, every block but the last leaves one row for each that follows.
local function fill(sums, speeds, limit, all)
  local sizes, begin, rows = {}, 0, #sums - 1
  for i, speed in ipairs(speeds) do
    local low, high = begin, all and math.max(begin, rows - (#speeds - i)) or rows
    while low < high do  -- the last row whose sum is within
      local middle = (low + high + 1) // 2
      if sums[middle + 1] - sums[begin + 1] <= limit * speed then low = middle else high = middle - 1 end
    end
    sizes[i], begin = low - begin, low
  end
  return begin == rows and sizes or nil
end

--- mh.cut_sizes(weights, parts, speeds = nil) -> {integer}
---   Sizes of blocks of consecutive rows such that the slowest block is as fast as possible: a block takes the sum of
---   the weights of its rows, divided by its speed.
---   weights     {number}|Tensor   the work of each row, of at least 0
---   parts       integer     number of blocks
---   speeds      {number}?   one for each block; nil for equal ones
---   returns     {integer}   for mh.Shard(dim, sizes); equal numbers give the same sizes on every rank
---   collective  no
---   errors      ValueError: numbers that are out of range
---   example
---     mh.cut_sizes({1, 1, 1, 1, 4}, 2)    --> {4, 1}
return function(weights, parts, speeds)
  local rows = numbers("weights", weights, 0)
  if math.type(parts) ~= "integer" or parts < 1 then
    fail(("cut_sizes: parts is %s\n  have  %d rows\n  fix   give an integer of at least 1"):format(text.of(parts),
        #rows))
  end
  local by = {}
  for i = 1, parts do by[i] = 1 end
  if speeds ~= nil then
    by = numbers("speeds", speeds, 0)
    if #by ~= parts then
      fail(("cut_sizes: %d speeds for %d parts\n  have  %s\n  fix   give one speed a part"):format(#by, parts,
          mh.json.encode(by)))
    end
  end
  local sums, total, fastest = {0}, 0, 0
  for i, weight in ipairs(rows) do
    total = total + weight
    sums[i + 1] = total
  end
  for _, speed in ipairs(by) do fastest = math.max(fastest, speed) end
  if fastest == 0 then
    fail(("cut_sizes: all speeds are 0\n  have  %d parts\n  fix   give at least one part a speed"):format(parts))
  end
  local low, high = 0, total / fastest  -- one part could do all
  for _ = 1, 200 do
    local middle = (low + high) / 2
    if middle == low or middle == high then break end
    if fill(sums, by, middle) then high = middle else low = middle end
  end
  while not fill(sums, by, high) do high = high * (1 + 2 ^ -50) end  -- total / fastest was rounded down
  return #rows >= parts and fill(sums, by, high, true) or fill(sums, by, high)
end
