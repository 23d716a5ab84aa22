-- SPDX-License-Identifier: Apache-2.0
-- mh.space: distributions of settings for `moonhalo sweep --random N --space FILE`. A draw depends on the seed of the
-- sweep, the number of the point and the name of the setting alone, so every machine has the same points.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"

local fail = mh.fail
local space = {}

local function check_range(op, low, high)
  arguments.number("space." .. op, "low", low)
  arguments.number("space." .. op, "high", high)
  if not (low < high) or (op == "log" and low <= 0) then
    fail(("space.%s: no number is between\n  have  %s, %s\n  fix   give the smaller number first%s"):format(op, low,
      high, op == "log" and ", above 0" or ""))
  end
end

--- Few digits: the last ones of a logarithm may differ between machines.
local function rounded(value) return tonumber(("%.6g"):format(value)) + 0.0 end

--- mh.space.uniform(low, high) -> table
---   Numbers between two, all equally likely, for the file of `moonhalo sweep --space`.
---   low         number      smallest
---   high        number      largest
---   returns     table       {draw}: draw(u) is the value for a number u from 0 to 1
---   collective  no
---   errors      ValueError: high is not above low
---   example
---     mh.space.uniform(0, 4).draw(0.25)    --> 1.0
function space.uniform(low, high)
  check_range("uniform", low, high)
  return {draw = function(u) return rounded(low + u * (high - low)) end}
end

--- mh.space.log(low, high) -> table
---   Numbers between two, whose logarithms are equally likely.
---   low         number      smallest, above 0
---   high        number      largest
---   returns     table       {draw}
---   collective  no
---   errors      ValueError: high is not above low, or low not above 0
---   example
---     mh.space.log(1e-4, 1e-2).draw(0.5)    --> 0.001
function space.log(low, high)
  check_range("log", low, high)
  return {draw = function(u) return rounded(math.exp(math.log(low) + u * (math.log(high) - math.log(low)))) end}
end

--- mh.space.integer(low, high) -> table
---   Integers from low to high, all equally likely.
---   low         integer     smallest
---   high        integer     largest
---   returns     table       {draw}
---   collective  no
---   errors      ValueError: high is not above low, or not an integer
---   example
---     mh.space.integer(1, 4).draw(0.99)    --> 4
function space.integer(low, high)
  check_range("integer", low, high)
  if math.type(low) ~= "integer" or math.type(high) ~= "integer" then
    fail(("space.integer: expected integers, got %s and %s"):format(low, high))
  end
  return {draw = function(u) return math.min(high, low + math.floor(u * (high - low + 1))) end}
end

--- mh.space.choice(values) -> table
---   One of a list, all equally likely.
---   values      table       list of numbers, strings or booleans
---   returns     table       {draw}
---   collective  no
---   errors      ValueError: an empty list
---   example
---     mh.space.choice{"gelu", "relu"}.draw(0.9)    --> relu
function space.choice(values)
  if type(values) ~= "table" or #values == 0 then
    fail("space.choice: expected a list of values, got " .. mh._describe(values))
  end
  return {draw = function(u) return values[math.min(#values, 1 + math.floor(u * #values))] end}
end

return require("moonhalo.internal.strict").table("space", space)
