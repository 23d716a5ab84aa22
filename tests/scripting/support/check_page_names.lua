-- SPDX-License-Identifier: Apache-2.0
-- Lua blocks of pages that do not run by themselves, because they are parts of programs: each is Lua without a mistake
-- of syntax, and the names of mh, nn and optim in it exist. run_pages.py gives the pages.
local mh = require "moonhalo"
local reference = require "support.reference"

local kRoots = {mh = mh, nn = mh.nn, optim = mh.optim}
-- Names that a session of an embedding program has.
local kElsewhere = {["mh.host"] = true}

local wrong, names = 0, 0

--- Methods by name: of the reference, of tensors, and of strings. Entries of their objects describe the first ones.
local methods = {}
for name in ("saved scale get_scale unscale_ train_step mask serve finish"):gmatch "[%w_]+" do methods[name] = true end
for _, entry in ipairs(reference.entries()) do
  for _, name in ipairs(entry.names) do
    local method = name:match(":([%w_]+)$")
    if method then methods[method] = true end
  end
end

local function is_method(name)
  return methods[name] or string[name] ~= nil or pcall(function() return assert(mh.Tensor[name]) end)
end

local function complain(place, text)
  wrong = wrong + 1
  print(place .. ": " .. text)
end

--- Says whether a dotted name leads to a value.
local function exists(name)
  local value
  for part in name:gmatch("[%a_][%w_]*") do
    if value == nil then
      value = kRoots[part]
    else
      local ok, found = pcall(function() return value[part] end)
      if not ok or found == nil then return false end
      value = found
    end
    if type(value) ~= "table" then break end
  end
  return true
end

local function check(place, code)
  local ok, message = load(code, "=block", "t")
  if not ok and not load("return " .. code, "=block", "t") then complain(place, message) end
  code = code:gsub("%-%-[^\n]*", ""):gsub('"[^"\n]*"', '""')
  for before, name in (" " .. code):gmatch("([^%w_.\"'/])(%a+%.[%a_][%w_.]*)") do
    if kRoots[name:match("^%a+")] and not kElsewhere[name:match("^%a+%.%w+")] then
      names = names + 1
      if not exists(name) then complain(place, ("%s does not exist"):format(name)) end
    end
  end
  for owner, name in code:gmatch("([%w_]*[%w_%]%)}]):([%a_][%w_]*) ?[({\"]") do
    names = names + 1
    local own = code:find("function [%w_]+:" .. name .. "%(")
    if not own and not is_method(name) then complain(place, ("%s:%s() does not exist"):format(owner, name)) end
  end
end

for _, path in ipairs(arg) do
  local number, start, block = 0, 0, nil
  for line in io.lines(path) do
    number = number + 1
    if line:find("^```") then
      if block then check(("%s:%d"):format(path, start), table.concat(block, "\n")) end
      block, start = line:find("^```lua") and {} or nil, number + 1
    elseif block then
      block[#block + 1] = line
    end
  end
end
if names == 0 then mh.fail "no names were found" end
if wrong > 0 then mh.fail(("%d mistakes in blocks of pages"):format(wrong)) end
print(("%d pages, %d names"):format(#arg, names))
