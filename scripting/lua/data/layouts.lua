-- SPDX-License-Identifier: Apache-2.0
-- mh.data.layouts: how files say what they hold. A layout is a table
--
--     {name = "mine",
--      matches = function(file) return file:has("magic") end,          -- cheap; the last one added is asked first
--      describe = function(file, options) return head end}
--
-- that looks at an open file (keys, datasets, has, attrs, ["name"] with shape, dims, attrs, type_name, read; nothing else of
-- its format) and returns, as plain tables:
--
--     axis, space      name of the dim that steps follow (nil without one), names of the dims of space, in order
--     steps, times     number of steps; their times in seconds, or numbers; nil without
--     dates            true where times are seconds of `calendar`
--     trajectories     how many runs of steps the file has, each of its own
--     join             "axis": the steps of several files follow each other; "trajectories": they are other runs
--     coordinates      name of a dim -> list of numbers
--     boundary         name of a dim -> text, as "periodic"; may be left out
--     fields           name -> {datasets = {path, or one a trajectory}, dims = {names}, shape, units, standard_name, channel_names}
--
-- In `dims` of a field, "sample" is the dim of trajectories, and what is neither axis nor space counts channels.

local mh = require "moonhalo"

local fail = mh.fail
local layouts = {}

local known = {}
for _, name in ipairs {"plain", "pdebench", "well", "cf", "makani"} do known[#known + 1] = require("moonhalo.data.layouts." .. name) end

local own = {}  -- names of layouts that were added

--- True where `name`, or without a name any file's layout, is one of those above.
function layouts.come_with_moonhalo(name)
  if name ~= nil then return not own[name] end
  return next(own) == nil
end

local function names()
  local list = {}
  for i = #known, 1, -1 do list[#list + 1] = known[i].name end
  return list
end

--- Adds a layout, which is asked before all others. One of the same name is replaced.
function layouts.add(layout)
  if type(layout) ~= "table" or type(layout.name) ~= "string" or type(layout.matches) ~= "function"
      or type(layout.describe) ~= "function" then
    fail("data.layouts.add: wanted {name = text, matches = function(file), describe = function(file, options)}\n  have  "
      .. require("moonhalo.data.text").of(layout) .. "\n  fix   see layouts.lua, or docs/data.md")
  end
  for i, one in ipairs(known) do
    if one.name == layout.name then
      table.remove(known, i)
      break
    end
  end
  known[#known + 1], own[layout.name] = layout, true
end

layouts.names = names

--- The layout named `name`, or without a name the first that knows `file`.
function layouts.choose(file, name)
  for i = #known, 1, -1 do
    if name == known[i].name or (name == nil and known[i].matches(file)) then return known[i] end
  end
  fail(("data.open: unknown layout '%s'%s\n  have  %s\n  fix   add one by mh.data.layouts.add"):format(tostring(name),
    mh.did_you_mean(tostring(name), names()), table.concat(names(), ", ")))
end

return layouts
