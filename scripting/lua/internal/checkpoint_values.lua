-- SPDX-License-Identifier: Apache-2.0
-- The values of a checkpoint as JSON and back, exactly: lists and tables with strings as keys are those of JSON; all
-- else is an object of one key that begins with "$":
--   {"$tensor": name}              {"$number": "inf"}, which JSON lacks
--   {"$text": "c3"}                bytes that are not UTF-8, in hexadecimal digits
--   {"$table": [[key, value]]}     a table with holes, numbers or booleans as keys, or keys beside a list

local mh = require "moonhalo"
local sorted_keys = require "moonhalo.internal.sorted_keys"
local strict = require "moonhalo.internal.strict"

local fail = mh.fail
local values = {}

local kDeepest = 90  -- checkpoint.json holds some levels more

local names_of_list = require("moonhalo.internal.registries").names_of_list

--- The name itself, or one that no tensor of the list has: {a = {b = x}, ["a.b"] = y}.
local function free_name(name, tensors)
  if not utf8.len(name) then name = name:gsub("[^%w_.-]", "?") end
  local used, free, number = names_of_list[tensors] or {}, name, 1
  while used[free] or free == "__metadata__" do
    number = number + 1
    free = ("%s#%d"):format(name, number)
  end
  used[free], names_of_list[tensors] = true, used
  return free
end

--- The place of a value as scripts write it, for messages. `tensors.entry`: the name of the entry.
local function place_of(path, tensors)
  if not tensors.entry then return path end
  return path == "" and tensors.entry or tensors.entry .. "." .. path
end

local function pack_text(text)
  if utf8.len(text) then return text end
  return {["$text"] = text:gsub(".", function(byte) return ("%02x"):format(byte:byte()) end)}
end

--- True if the value restores itself: a module, an optimizer, a schedule. Its fields are not what it is.
local function has_state(value)
  if type(value) == "userdata" then return value ~= mh.none end
  if not getmetatable(value) then return false end
  return type(strict.get(value, "load_state_dict")) == "function"
end

--- Returns two booleans: the table is a list without holes; all of its keys are strings that are not marks.
local function kind_of(value)
  local count, is_list, is_object = 0, true, true
  for key in pairs(value) do
    count = count + 1
    is_list = is_list and math.type(key) == "integer" and key >= 1
    is_object = is_object and type(key) == "string" and key:sub(1, 1) ~= "$" and utf8.len(key) ~= nil
  end
  return is_list and count > 0 and rawlen(value) == count and value[count] ~= nil, is_object
end

local function pack_table(value, path, tensors, depth)
  local packed, is_list, is_object = {}, kind_of(value)
  for i, key in ipairs(sorted_keys(value)) do
    local kind = type(key)
    if kind ~= "string" and kind ~= "number" and kind ~= "boolean" then
      fail(("checkpoint.save: '%s' has a %s as a key\n  fix   use strings or numbers"):format(place_of(path, tensors),
          mh.is_tensor(key) and "tensor" or kind))
    end
    local name = path == "" and tostring(key) or path .. "." .. tostring(key)
    local element = values.pack(value[key], name, tensors, depth + 1)
    if is_list or is_object then
      packed[key] = element
    else
      packed[i] = {values.pack(key, name, tensors, depth + 1), element}
    end
  end
  return (is_list or is_object) and packed or {["$table"] = packed}
end

--- Appends {name, tensor} to `tensors` for every tensor. `depth`: of tables around the value.
function values.pack(value, path, tensors, depth)
  if mh.is_tensor(value) then
    local name = free_name(path, tensors)
    tensors[#tensors + 1] = {name, value:detach()}
    return {["$tensor"] = name}
  end
  local kind = type(value)
  if kind == "number" and (value ~= value or value == math.huge or value == -math.huge) then
    return {["$number"] = value ~= value and "nan" or value > 0 and "inf" or "-inf"}
  end
  if kind == "string" then return pack_text(value) end
  if kind == "number" or kind == "boolean" then return value end
  if (kind == "table" or kind == "userdata") and has_state(value) then
    fail(("checkpoint.save: '%s' is a module, an optimizer or the like inside of a table\n" ..
        "  fix   make it an entry of its own, "
      .. "{model = net, optimizer = opt}, or save its state_dict()"):format(place_of(path, tensors)))
  end
  if kind ~= "table" then
    fail("checkpoint.save: '" .. place_of(path, tensors) .. "' is a " .. kind .. ", which cannot be saved")
  end
  if depth > kDeepest then
    fail(("checkpoint.save: '%s...' is nested deeper than %d levels, or holds itself"):format(
        place_of(path, tensors):sub(1, 60), kDeepest))
  end
  return pack_table(value, path, tensors, depth)
end

local kNumbers = {nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge}

local function unpack_pairs(pairs_, tensor, damaged)
  local result = {}
  if type(pairs_) ~= "table" then damaged("a table is a " .. type(pairs_)) end
  for _, pair in pairs(pairs_) do
    local key = type(pair) == "table" and values.unpack(pair[1], tensor, damaged)
    if key == nil or key ~= key or type(pair) ~= "table" or type(key) == "table" or pair[2] == nil then
      damaged("a table has a broken key")
    end
    result[key] = values.unpack(pair[2], tensor, damaged)
  end
  return result
end

--- `tensor(name)` gives what stands for a tensor, or nil; `damaged(problem)` raises an error.
function values.unpack(value, tensor, damaged)
  if type(value) ~= "table" then return value end
  if value["$table"] ~= nil then return unpack_pairs(value["$table"], tensor, damaged) end
  local name, number, digits = value["$tensor"], value["$number"], value["$text"]
  local text = name or number or digits
  if text ~= nil and type(text) ~= "string" then damaged("a name is a " .. type(text)) end
  if name ~= nil then return tensor(name) or damaged(("the tensor '%s' is missing"):format(name)) end
  if number ~= nil then return kNumbers[number] or damaged(("'%s' is not a number"):format(number)) end
  if digits ~= nil then
    if #digits % 2 ~= 0 or digits:find("%X") then damaged(("'%s' are not hexadecimal digits"):format(digits)) end
    return (digits:gsub("%x%x", function(byte) return string.char(tonumber(byte, 16)) end))
  end
  local result = {}
  for key, element in pairs(value) do result[key] = values.unpack(element, tensor, damaged) end
  return result
end

--- Calls visit(a, b) for what stands at the same places of two trees of tables, in an order that all ranks share.
function values.walk_both(a, b, visit)
  if type(a) ~= "table" then return visit(a, b) end
  for _, key in ipairs(sorted_keys(a)) do values.walk_both(a[key], b[key], visit) end
end

--- A copy of the tree `value` with read(tensor, like) for those tensors that `names` has; `like`: the tensor that
--- stands at the same place of the tree `now`, if one does.
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

--- Makes `target`, a plain value, what was saved, and returns it: a table stays the same one, also those in it; a
--- tensor too where shape and dtype are the same.
function values.fill(target, saved)
  if mh.is_tensor(target) and mh.is_tensor(saved) and target.dtype == saved.dtype and not target:is_deferred()
    and table.concat(target.shape, " ") == table.concat(saved.shape, " ")
        and target:is_shard_tensor() == saved:is_shard_tensor() then
    mh.no_grad(function() target:copy_(saved) end)
    return target
  end
  if type(target) ~= "table" or type(saved) ~= "table" or target == saved then return saved end
  local filled = {}
  for key, value in pairs(saved) do filled[key] = values.fill(rawget(target, key), value) end
  for _, key in ipairs(sorted_keys(target)) do rawset(target, key, nil) end
  for key, value in pairs(filled) do rawset(target, key, value) end
  return target
end

return values
