-- SPDX-License-Identifier: Apache-2.0
-- The text that print shows of a plain table: its contents, keys in the order of pairs, the same on all ranks. An
-- address would say nothing, and differ from rank to rank.

local mh = require "moonhalo"
local sorted = require "moonhalo.internal.sorted_keys"

local kWide = 100  -- letters of a line
local kDeep = 6    -- tables in tables
local kMost = 50   -- entries of a table

local text_of

local function key_text(key)
  if type(key) == "string" then return key:match("^[%a_][%w_]*$") and key or ("[%q]"):format(key) end
  return "[" .. text_of(key, {}, "") .. "]"
end

--- Strings of the entries: the list, then what has other keys.
local function entries_of(value, above, indent)
  local entries, count = {}, rawlen(value)
  local function add(text)
    if #entries < kMost then entries[#entries + 1] = text end
  end
  for i = 1, count do add(text_of(rawget(value, i), above, indent)) end
  local others = 0
  for _, key in ipairs(sorted(value)) do
    if not (math.type(key) == "integer" and key >= 1 and key <= count) then
      others = others + 1
      add(key_text(key) .. " = " .. text_of(rawget(value, key), above, indent))
    end
  end
  local more = count + others - #entries
  if more > 0 then entries[#entries + 1] = ("... %d more"):format(more) end
  return entries
end

--- `above`: the tables that this one is in.
local function table_text(value, above, indent)
  if above[value] or #above == kDeep then return "{...}" end
  above[value], above[#above + 1] = true, value
  local entries = entries_of(value, above, indent .. "  ")
  above[value], above[#above] = nil, nil
  local line = "{" .. table.concat(entries, ", ") .. "}"
  if #indent + #line <= kWide and not line:find("\n", 1, true) then return line end
  return "{\n" .. indent .. "  " .. table.concat(entries, ",\n" .. indent .. "  ") .. "\n" .. indent .. "}"
end

function text_of(value, above, indent)
  local kind = type(value)
  if kind == "string" then return (("%q"):format(value):gsub("\\\n", "\\n")) end
  if kind == "number" or kind == "boolean" then return tostring(value) end
  if kind ~= "table" or getmetatable(value) then return mh._describe(value) end
  return table_text(value, above, indent)
end

return function(value) return getmetatable(value) and mh._describe(value) or table_text(value, {}, "") end
