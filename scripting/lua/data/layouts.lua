-- SPDX-License-Identifier: Apache-2.0
-- mh.data.layouts: how files say what they hold. docs/layouts.md is the contract: what a layout is, and what its
-- `describe` returns.

local mh = require "moonhalo"

local fail = mh.fail
local layouts = {}

local known = {}
for _, name in ipairs {"plain", "pdebench", "well", "cf", "makani"} do
  known[#known + 1] = require("moonhalo.data.layouts." .. name)
end

local kOnlyTheirs = {pdebench = true, well = true, makani = true}  -- they describe nothing but what they know
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
  if type(layout) ~= "table" or getmetatable(layout) or type(layout.name) ~= "string"
      or type(layout.matches) ~= "function"
      or type(layout.describe) ~= "function" then
    fail("data.layouts.add: wanted {name = text, matches = function(file), describe = function(file, options)}\n" ..
        "  have  "
      .. require("moonhalo.data.text").of(layout) .. "\n  fix   see docs/layouts.md")
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
  local meta = getmetatable(file)
  if type(file) ~= "userdata" or not meta or meta.__name ~= "File" then
    fail("data.layouts.choose: the file is " .. mh._describe(file) .. "\n  fix   give what mh.h5.open(path) returned")
  end
  for i = #known, 1, -1 do
    if name == known[i].name or (name == nil and known[i].matches(file)) then
      if kOnlyTheirs[name] and not own[name] and not known[i].matches(file) then
        fail(("data.open: '%s' is no file of layout '%s'\n  have  %s\n" ..
          "  fix   leave layout out; dims = {names} says what the dims of a plain file are"):format(
          file.path, name, table.concat(file:keys(), ", ")))
      end
      return known[i]
    end
  end
  fail(("data.open: unknown layout '%s'%s\n  have  %s\n  fix   add one by mh.data.layouts.add"):format(tostring(name),
    mh.did_you_mean(tostring(name), names()), table.concat(names(), ", ")))
end

return require("moonhalo.internal.strict").table("data.layouts", layouts)
