-- SPDX-License-Identifier: Apache-2.0
-- Settings in YAML as a table. Values are strings in the file: the defaults of mh.config decide their types, so
-- `country: no` is a string where the default is one, and `lr: 1e-3` a number.

local mh = require "moonhalo"
local is_group = require("moonhalo.internal.groups").is_group

local fail = mh.fail

local kBooleans = {["true"] = true, True = true, TRUE = true, ["false"] = false, False = false, FALSE = false}
local kNumbers = {[".inf"] = math.huge, ["+.inf"] = math.huge, ["-.inf"] = -math.huge, [".nan"] = 0 / 0}

local function number_of(text)
  if text:find("^%s*[-+]?0%d") then return nil end  -- octal to some programs, decimal to others
  return kNumbers[text:lower()] or tonumber(text)
end

--- The value of a plain text where no default says of which type it is.
local function guess(text)
  if kBooleans[text] ~= nil then return kBooleans[text] end
  local number = number_of(text)
  return number == nil and text or number
end

local value_of

local function list_of(node, default, path, file)
  local list = {}
  for i, element in ipairs(node.list) do
    list[i] = value_of(element, default and default[1], path .. "[" .. i .. "]", file)
  end
  return list
end

local function table_of(node, defaults, path, file)
  local values = {}
  for i, key in ipairs(node.keys) do
    local default = defaults[key]
    if default == nil then
      local known = require("moonhalo.internal.sorted_keys")(defaults)
      fail(("config: unknown key '%s'%s\n  have  from --config %s, line %d\n  known %s"):format(path .. key,
        mh.did_you_mean(key, known), file, node.values[i].line, table.concat(known, ", ")))
    end
    values[key] = value_of(node.values[i], default, path .. key, file)
  end
  return values
end

local function kind_of(default)
  if is_group(default) then return "a table" end
  if type(default) == "table" then return "a list" end
  if type(default) == "number" then return math.type(default) == "integer" and "an integer" or "a number" end
  return type(default) == "boolean" and "true or false" or "a string"
end

--- A node as the kind of `default`, the empty path being the whole file.
function value_of(node, default, path, file)
  local value
  if is_group(default) then
    if node.keys then return table_of(node, default, path == "" and "" or path .. ".", file) end
  elseif type(default) == "table" then
    if node.list then return list_of(node, default, path, file) end
  elseif node.text then
    if type(default) == "string" then return node.text end
    if default == nil then return node.quoted and node.text or not node.quoted and guess(node.text) end
    if not node.quoted and type(default) == "boolean" then value = kBooleans[node.text] end
    if not node.quoted and type(default) == "number" then value = number_of(node.text) end
    if math.type(default) == "integer" then value = value and math.tointeger(value) end
    if value ~= nil then return value end
  end
  local given = node.keys and "a map" or node.list and "a list" or (node.quoted and "the text " or "") .. "'"
      .. node.text:sub(1, 200):gsub("%c", " ") .. "'"
  fail(("config: %s is %s, got %s\n  have  from --config %s, line %d\n  fix   give %s"):format(path == "" and "the file"
    or "'" .. path .. "'", kind_of(default), given, file, node.line, kind_of(default)))
end

--- The settings of a file.
return function(file, defaults)
  local node = mh._yaml(file)
  if node == nil then return {} end
  return value_of(node, defaults, "", file)
end
