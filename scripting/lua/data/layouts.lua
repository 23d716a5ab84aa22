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

--- mh.data.layouts.come_with_moonhalo(name = nil) -> boolean
---   Whether a layout, or without a name every known layout, is one of Moonhalo's own.
---   name        string?     of a layout
---   returns     boolean     false for layouts that mh.data.layouts.add has added
---   collective  no
---   example
---     mh.data.layouts.come_with_moonhalo("cf")    --> true
function layouts.come_with_moonhalo(name)
  if name ~= nil then return not own[name] end
  return next(own) == nil
end

local function names()
  local list = {}
  for i = #known, 1, -1 do list[#list + 1] = known[i].name end
  return list
end

--- mh.data.layouts.add(layout) -> nothing
---   Adds a layout, which is asked before all others; one of the same name is replaced. docs/layouts.md describes what
---   a layout is.
---   layout      table       {name, matches = function(file), describe = function(file, options)}
---   returns     nothing
---   collective  no, but all ranks must add the same
---   errors      ValueError: a field is missing
---   example
---     (pcall(mh.data.layouts.add, {name = "mine"}))    --> false
function layouts.add(layout)
  if type(layout) ~= "table" or getmetatable(layout) or type(layout.name) ~= "string"
      or type(layout.matches) ~= "function"
      or type(layout.describe) ~= "function" then
    fail("data.layouts.add: expected {name = text, matches = function(file), describe = function(file, options)}\n" ..
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

--- mh.data.layouts.names() -> {string}
---   The names of the known layouts, in the order in which they are asked.
---   returns     {string}    those that were added come first
---   collective  no
---   example
---     mh.data.layouts.names()    --> {"makani", "cf", "well", "pdebench", "plain"}
layouts.names = names

--- mh.data.layouts.choose(file, name = nil) -> table
---   The layout of a file: the named one, or the first that fits.
---   file        File        of mh.h5.open
---   name        string?     of a layout
---   returns     table       {name, matches, describe}
---   collective  no
---   errors      ValueError: an unknown name, or a file of another layout
---   example
---     local path = ("%s/layout%d.h5"):format(folder, mh.rank())
---     local out = mh.h5.open(path, "w")
---     out:write("u", mh.ones{3, 4})
---     out:close()
---     mh.data.layouts.choose(mh.h5.open(path)).name    --> plain
function layouts.choose(file, name)
  local meta = getmetatable(file)
  if type(file) ~= "userdata" or not meta or meta.__name ~= "File" then
    fail("data.layouts.choose: the file is " .. mh._describe(file) .. "\n  fix   give what mh.h5.open(path) returned")
  end
  for i = #known, 1, -1 do
    if name == known[i].name or (name == nil and known[i].matches(file)) then
      if kOnlyTheirs[name] and not own[name] and not known[i].matches(file) then
        fail(("data.open: '%s' is not a file of layout '%s'\n  have  %s\n" ..
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
