-- SPDX-License-Identifier: Apache-2.0
-- The values of a checkpoint as JSON and back: a tensor is {"$tensor": name}, a number that JSON lacks {"$number": "inf"}.

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"

local fail = mh.fail
local values = {}

local kDeepest = 90  -- checkpoint.json holds some levels more

function values.is_entry_name(key) return type(key) == "string" and key:match("^[%w_-]+$") ~= nil end

--- Appends {name, tensor} to `tensors` for every tensor. `depth`: of tables around the value.
function values.pack(value, path, tensors, depth)
  if mh.is_tensor(value) then
    tensors[#tensors + 1] = {path, value:detach()}
    return {["$tensor"] = path}
  end
  local kind = type(value)
  if kind == "number" and (value ~= value or value == math.huge or value == -math.huge) then
    return {["$number"] = value ~= value and "nan" or value > 0 and "inf" or "-inf"}
  end
  if kind == "number" or kind == "string" or kind == "boolean" then return value end
  if kind ~= "table" then fail("checkpoint.save: '" .. path .. "' is a " .. kind .. ", which cannot be saved") end
  if depth > kDeepest then
    fail(("checkpoint.save: '%s...' is nested deeper than %d levels, or holds itself"):format(path:sub(1, 60), kDeepest))
  end
  local packed = {}
  if rawlen(value) > 0 then
    for i, element in ipairs(value) do packed[i] = values.pack(element, path .. "." .. i, tensors, depth + 1) end
    return packed
  end
  for _, key in ipairs(sorted_keys(value)) do
    if type(key) ~= "string" then fail("checkpoint.save: '" .. path .. "' has the key " .. tostring(key) .. ", which is no text") end
    if key:sub(1, 1) == "$" then fail("checkpoint.save: '" .. path .. "' has the key '" .. key .. "', but $ is the checkpoint's own") end
    packed[key] = values.pack(value[key], path == "" and key or path .. "." .. key, tensors, depth + 1)
  end
  return packed
end

local kNumbers = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

--- `tensor(name)` gives what stands for a tensor, or nil; `damaged(problem)` raises an error.
function values.unpack(value, tensor, damaged)
  if type(value) ~= "table" then return value end
  local name, number = value["$tensor"], value["$number"]
  local text = name or number
  if text ~= nil and type(text) ~= "string" then damaged("a name is a " .. type(text)) end
  if name ~= nil then return tensor(name) or damaged(("the tensor '%s' is missing"):format(name)) end
  if number ~= nil then return kNumbers[number] or damaged(("'%s' is no number"):format(number)) end
  local result = {}
  for key, element in pairs(value) do result[key] = values.unpack(element, tensor, damaged) end
  return result
end

--- Calls visit(a, b) for what stands at the same places of two trees of tables, in an order that all ranks share.
function values.walk_both(a, b, visit)
  if type(a) ~= "table" then return visit(a, b) end
  for _, key in ipairs(sorted_keys(a)) do values.walk_both(a[key], b[key], visit) end
end

--- A copy of the tree `value` with read(tensor, like) for those tensors that `names` knows; `like`: the tensor that stands
--- at the same place of the tree `now`, if one does.
function values.replace_tensors(value, now, read, names)
  if mh.is_tensor(value) then
    if not names[value] then return value end
    return read(value, mh.is_tensor(now) and now or nil)
  end
  if type(value) ~= "table" then return value end
  local result, beside = {}, type(now) == "table"
  for _, key in ipairs(sorted_keys(value)) do
    result[key] = values.replace_tensors(value[key], beside and now[key] or nil, read, names)
  end
  return result
end

return values
