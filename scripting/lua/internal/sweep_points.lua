-- SPDX-License-Identifier: Apache-2.0
-- The points of a sweep: lists of settings as --set has them, {"lr=0.001", "net.width=16"}.

local mh = require "moonhalo"
local groups = require "moonhalo.internal.groups"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local points = {}

--- A value as --set reads it.
local function text_of(value)
  if type(value) ~= "table" then
    return type(value) == "string" and value or (mh.json.encode{value}:sub(2, -2))
  end
  local parts = {}
  for i, element in ipairs(value) do parts[i] = text_of(element) end
  return "[" .. table.concat(parts, ",") .. "]"
end

--- The parts of a string between commas that are not in brackets.
local function split(text)
  local parts, depth, start = {}, 0, 1
  for at = 1, #text + 1 do
    local letter = text:sub(at, at)
    if letter == "[" then depth = depth + 1 end
    if letter == "]" then depth = depth - 1 end
    if (letter == "," and depth == 0) or at == #text + 1 then
      parts[#parts + 1], start = text:sub(start, at - 1), at + 1
    end
  end
  return parts
end

--- All combinations; the first setting changes slowest.
function points.grid(given)
  local list = {{}}
  for _, one in ipairs(given) do
    local key, values = one:match("^([^=]+)=(.+)$")
    if not key then
      fail(("sweep: --grid '%s' is not of the form key=a,b,c"):format(one))
    end
    local longer = {}
    for _, point in ipairs(list) do
      for _, value in ipairs(split(values)) do
        local more = table.move(point, 1, #point, 1, {})
        more[#more + 1] = key .. "=" .. value
        longer[#longer + 1] = more
      end
    end
    list = longer
  end
  return list
end

--- SplitMix64: a number from 0 to 1 for a seed, a point and a name.
local function uniform(seed, index, name)
  local x = (seed * 0x9e3779b97f4a7c15) ~ (index * 0xd1342543de82ef95) ~ mh._run.crc32c(name)
  for _ = 1, 2 do
    x = x + 0x9e3779b97f4a7c15
    x = (x ~ (x >> 30)) * 0xbf58476d1ce4e5b9
    x = (x ~ (x >> 27)) * 0x94d049bb133111eb
    x = x ~ (x >> 31)
  end
  return (x >> 11) * 2.0 ^ -53
end

--- `count` points that are drawn from the distributions of a file. Point i depends on seed and i alone.
function points.random(count, path, seed)
  if path == "" then
    fail("sweep: --random has no space\n  fix   give --space FILE.lua, which returns {lr = mh.space.log(1e-5, 1e-2)}")
  end
  local load, problem = loadfile(path, "t")
  if not load then fail("sweep: --space: " .. problem) end
  local space = load()
  local names = type(space) == "table" and sorted_keys(space) or {}
  for _, name in ipairs(names) do
    if type(name) ~= "string" or type(space[name]) ~= "table" or type(space[name].draw) ~= "function" then
      fail(("sweep: --space '%s': '%s' is %s\n  fix   give mh.space.log, uniform, integer or choice"):format(path,
        tostring(name), mh._describe(space[name])))
    end
  end
  if #names == 0 then fail(("sweep: --space '%s' gives no settings"):format(path)) end
  local list = {}
  for i = 1, count do
    list[i] = {}
    for k, name in ipairs(names) do
      list[i][k] = name .. "=" .. text_of(space[name].draw(uniform(seed, i - 1, name)))
    end
  end
  return list
end

--- One JSON object of settings a line.
function points.list(path)
  local list, number = {}, 0
  for line in io.lines(path) do
    number = number + 1
    if line:find("%S") then
      local read, values = pcall(mh.json.decode, line)
      if not read or type(values) ~= "table" or #values > 0 then
        fail(("sweep: --list '%s', line %d is not a JSON object"):format(path, number))
      end
      local settings, point = groups.flat(values, "", {}), {}
      for i, name in ipairs(sorted_keys(settings)) do point[i] = name .. "=" .. text_of(settings[name]) end
      list[#list + 1] = point
    end
  end
  return list
end

--- The points that the options of the command ask for.
function points.of(wanted)
  local kinds = {}
  if #wanted.grid > 0 then kinds[#kinds + 1] = "--grid" end
  if wanted.random > 0 then kinds[#kinds + 1] = "--random" end
  if wanted.list ~= "" then kinds[#kinds + 1] = "--list" end
  if #kinds ~= 1 then
    fail(("sweep: the points come from one of --grid, --random and --list\n  have  %s"):format(
      #kinds == 0 and "none of them" or table.concat(kinds, ", ")))
  end
  local list = kinds[1] == "--grid" and points.grid(wanted.grid) or kinds[1] == "--list" and points.list(wanted.list)
      or points.random(wanted.random, wanted.space, wanted.seed)
  if #list == 0 then fail("sweep: there are no points\n  have  an empty --list") end
  return list
end

return points
