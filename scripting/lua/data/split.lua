-- SPDX-License-Identifier: Apache-2.0
-- Splits of windows that share no step: set:split{train = {"1979", "2015"}, valid = {"2016", "2018"}}, or fractions. A
-- part is a stretch of steps; a window that reaches beyond it belongs to none, and is counted.
--
--     steps     |  train          | valid     |
--     windows    ---  ---  ---  -X-  ---  ---         X is dropped

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local calendar = require "moonhalo.data.calendar"
local sorted = require "moonhalo.internal.sorted_keys"
local text = require "moonhalo.data.text"

local fail = mh.fail
local kFirst = {train = 1, valid = 2, validation = 2, val = 2, test = 3}
local kBy = {"sample", "trajectory", "file"}

--- Train first, then what validates, then what tests, then others by name: tables of Lua have no order.
local function in_order(parts)
  local names = {}
  for _, name in ipairs(sorted(parts)) do
    if name ~= "by" then names[#names + 1] = name end
  end
  table.sort(names, function(a, b)
    local x, y = kFirst[a] or 4, kFirst[b] or 4
    if x ~= y then return x < y end
    return a < b
  end)
  return names
end

-- ---- By time --------------------------------------------------------------------------------------------------------

--- Times of a run from the first to before the second.
local function span_of(data, run, name, range)
  local of = run.dates ~= nil and run or data
  local function refuse(value, fix)
    fail(("split: '%s' has the border %s\n  have  times of %s\n  fix   %s"):format(name, text.of(value),
      of.dates and "calendar " .. of.calendar or "plain numbers", fix))
  end
  local borders = {}
  for i = 1, 2 do
    local value = range[i]
    if of.dates then
      local first, after = calendar.span(tostring(value), of.calendar)
      if not first then refuse(value, "write dates as \"2015\", \"2015-06\" or \"2015-06-01 12:00\"") end
      borders[i] = i == 1 and first or after
    else
      if type(value) ~= "number" then refuse(value, "give two numbers, the first time and the first after") end
      borders[i] = value
    end
  end
  if borders[1] >= borders[2] then
    fail(("split: '%s' ends before it begins\n  have  %s to %s\n  fix   give the earlier one first"):format(name,
        text.of(range[1]), text.of(range[2])))
  end
  return borders
end

local function check_apart(names, spans, parts)
  for i, a in ipairs(names) do
    for j = i + 1, #names do
      local b = names[j]
      if spans[a][1] < spans[b][2] and spans[b][1] < spans[a][2] then
        fail(("split: '%s' and '%s' overlap: samples of one would be known from the other\n" ..
            "  have  %s to %s and %s to %s\n  fix   let one begin after "
          .. "the other's end"):format(a, b, text.of(parts[a][1]), text.of(parts[a][2]), text.of(parts[b][1]),
              text.of(parts[b][2])))
      end
    end
  end
end

--- The first step (0) of a run whose time is not before `time`.
local function first_step(times, time)
  local low, high = 1, #times + 1
  while low < high do
    local middle = (low + high) // 2
    if times[middle] < time then low = middle + 1 else high = middle end
  end
  return low - 1
end

local function by_time(set, names, parts)
  local data, ranges = set.data, {}
  for _, name in ipairs(names) do ranges[name] = {} end
  for number, run in ipairs(data.runs) do
    local spans, from = {}, data.first_steps[number]
    for _, name in ipairs(names) do
      if not run.times then
        fail(("split: '%s' is a range of times\n  have  steps without times along '%s'\n  fix   give fractions"):format(
            name, tostring(data.axis)))
      end
      spans[name] = span_of(data, run, name, parts[name])
    end
    check_apart(names, spans, parts)
    for _, name in ipairs(names) do
      ranges[name][number] = {from + first_step(run.times, spans[name][1]),
          from + first_step(run.times, spans[name][2])}
    end
  end
  return ranges
end

-- ---- By fractions ---------------------------------------------------------------------------------------------------

--- Global steps at which a trajectory, or a file, begins; and that after the last.
local function borders(data, by)
  local found = {}
  for number, run in ipairs(data.runs) do
    for i, part in ipairs(run.parts) do
      local last = number > 1 and data.runs[number - 1].parts[#data.runs[number - 1].parts].file
      if by == "trajectory" and i == 1 or by == "file" and (i > 1 or part.file ~= last) then
        found[#found + 1] = data.first_steps[number] + part.first
      end
    end
  end
  found[#found + 1] = data.steps
  return found
end

--- The global step with which unit `k` of all units begins, and how many there are.
local function units(set, by)
  if by == "sample" then
    return function(k)
      if k >= set.count then return math.huge end
      local run, anchor = set:at(k)
      return set.data.first_steps[run + 1] + anchor + set.low
    end, set.count
  end
  local begins = borders(set.data, by)
  return function(k) return begins[k + 1] end, #begins - 1
end

local function by_fraction(set, names, parts, by)
  local sum, ranges = 0, {}
  local begin_of, count = units(set, by)
  for _, name in ipairs(names) do
    local fraction = parts[name]
    if type(fraction) ~= "number" or not (fraction > 0 and fraction <= 1) then
      fail(("split: '%s' is %s\n  have  %s beside it\n" ..
        "  fix   give fractions above 0, or ranges {first, last} for all"):format(name, text.of(fraction),
        mh.json.encode(parts)))
    end
    local before = math.floor(sum * count + 0.5)
    sum = sum + fraction
    if sum > 1 + 1e-9 then
      fail(("split: the fractions add up to more than 1\n  have  %s\n  fix   give fractions of the whole"):format(
          mh.json.encode(parts)))
    end
    ranges[name] = {{begin_of(before), begin_of(math.floor(sum * count + 0.5))}}
  end
  return ranges
end

-- ---- Both -----------------------------------------------------------------------------------------------------------

--- Counts those of the numbers 0, every, 2 * every, ... (`count` of them) that are below `border`.
local function below(border, every, count)
  if border == math.huge then return count end
  return math.max(0, math.min(count, (border + every - 1) // every))
end

--- The first anchor of a piece whose window is in steps [range[1], range[2]), how many of its windows do, and how
--- many of its anchors do.
local function inside(set, piece, range)
  local at = set.data.first_steps[piece.run + 1] + piece.first
  local function anchors(low, high)
    local first = below(range[1] - at - low, set.every, piece.count)
    return first, math.max(0, below(range[2] - at - high, set.every, piece.count) - first)
  end
  local first, count = anchors(set.low, set.high)
  local _, all = anchors(0, 0)
  return first, count, all
end

--- Sets named as the keys of `parts`, train first, then valid, then test, then others by name. Values: all ranges
--- {first, last} of times ("2015" is the whole year; numbers go to before the last), or all fractions of consecutive
--- samples (by = "sample"), whole trajectories (by = "trajectory", the default where there are several) or files (by =
--- "file").
return function(set, parts)
  if type(parts) ~= "table" or #in_order(parts) == 0 then
    fail("split: expected a table of parts\n  have  " .. text.of(parts)
        .. "\n  fix   give {train = 0.8, valid = 0.2}, or ranges {first, last}")
  end
  local names = in_order(parts)
  local by = arguments.choice("split", "by", parts.by or (#set.data.runs > 1 and "trajectory" or "sample"), kBy)
  local fractions = type(parts[names[1]]) ~= "table"
  for _, name in ipairs(names) do
    if not fractions and (type(parts[name]) ~= "table" or #parts[name] ~= 2) then
      fail(("split: '%s' is %s\n  have  ranges for others\n  fix   give {first, last}"):format(name,
          text.of(parts[name])))
    end
  end
  local ranges = fractions and by_fraction(set, names, parts, by) or by_time(set, names, parts)
  local sets = {}
  for i, name in ipairs(names) do
    local pieces, dropped = {}, 0
    for _, piece in ipairs(set.pieces) do
      for number, range in ipairs(ranges[name]) do
        if fractions or number == piece.run + 1 then
          local first, count, all = inside(set, piece, range)
          if count > 0 then
            pieces[#pieces + 1] = {run = piece.run, first = piece.first + first * set.every, count = count}
          end
          dropped = dropped + math.max(0, all - count)
        end
      end
    end
    if #pieces == 0 then
      fail(("split: '%s' is empty\n  have  %s; %d samples, %s to %s\n  fix   give it more"):format(name,
        mh.json.encode(parts[name]), set.count, set:time(0), set:time(set.count - 1)))
    end
    sets[i] = set:_over(pieces, name)
    sets[i].dropped = dropped
  end
  return table.unpack(sets)
end
