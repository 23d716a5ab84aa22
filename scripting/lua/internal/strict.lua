-- SPDX-License-Identifier: Apache-2.0
-- Objects and tables in which a name that does not exist is an error with the nearest one, to read and to write. Lua's
-- nil would go on as "no value", and fail far from the slip or not at all.

local mh = require "moonhalo"
local sorted = require "moonhalo.internal.sorted_keys"

local checked_fields = require("moonhalo.internal.registries").checked_fields
local fail = mh.fail
local strict = {}

local function is_public(name) return type(name) == "string" and name:sub(1, 1) ~= "_" end

--- Public names of tables and of what these inherit from, each once, sorted.
local function names_of(...)
  local seen = {}
  local function add(names)
    for name in pairs(names) do
      if is_public(name) then seen[name] = true end
    end
    local meta = getmetatable(names)
    if meta and type(meta.__index) == "table" then add(meta.__index) end
  end
  for _, names in ipairs {...} do add(names) end
  return sorted(seen)
end

local kMost = 24  -- names of an error

local function listed(names)
  local rest = #names - kMost
  return #names == 0 and "none" or table.concat(names, ", ", 1, math.min(#names, kMost))
      .. (rest > 0 and (", ... %d more"):format(rest) or "")
end

local function near(name, known) return type(name) == "string" and mh.did_you_mean(name, known) or "" end

local function shown(name) return type(name) == "string" and "'" .. name .. "'" or mh._describe(name) end

--- The text of an object: its name and fields.
local function text_of(self, name)
  local parts = {}
  for _, field in ipairs(sorted(self)) do
    if is_public(field) then parts[#parts + 1] = field .. " = " .. mh._describe(self[field]) end
  end
  return name .. " {" .. table.concat(parts, ", ") .. "}"
end

--- value[name], or nil where `value` refuses that name.
function strict.get(value, name)
  local known, found = pcall(function() return value[name] end)
  if known then return found end
  return nil  -- no value at all would be an error of type(strict.get(...))
end

--- Wraps the public functions of `methods`, whose objects have a metatable with __class = methods, so that a call
--- without an object says so: `type_` is the word for one in that error.
function strict.methods(methods, type_)
  for name, method in pairs(methods) do
    if type(method) == "function" and is_public(name) then
      methods[name] = mh._class_method(method, name, methods, type_)
    end
  end
end

--- A method of objects for which is_object(x) is true, which says so when it is called without one.
function strict.method(method, name, is_object, type_)
  local refuse = mh._method(method, name, {}, type_)
  return mh._framed(function(self, ...) return (is_object(self) and method or refuse)(self, ...) end, method)
end

--- Finds methods of a class as strict.methods wraps them; those that are defined later are found, too.
local function finder_of(methods, type_)
  local wrapped = {}
  return function(name)
    local method = methods[name]
    if type(method) ~= "function" or not is_public(name) then return method end
    if not wrapped[method] then wrapped[method] = mh._class_method(method, name, methods, type_) end
    return wrapped[method]
  end
end

--- Asks the check of object[key] about `value`, without writing it: returns what is expected, and a remedy, or nothing.
function strict.problem(object, key, value)
  local check = getmetatable(object).checks[key]
  if check then return check(value, object) end
end

--- Keeps the values of fields with a check beside the object, so that each assignment comes here.
local function check_assignments(class, meta)
  local find, write, checks = meta.__index, meta.__newindex, meta.checks

  function meta.__index(self, key)
    local value = checked_fields[self]
    value = value and value[key]
    if value ~= nil then return value end
    return find(self, key)
  end

  function meta.__newindex(self, key, value)
    if not checks[key] then return write(self, key, value) end
    local expected, fix = checks[key](value, self)
    if expected then
      fail(("%s: %s is %s, expected %s\n  fix   %s"):format(class, key, mh._describe(value), expected, fix))
    end
    checked_fields[self] = checked_fields[self] or {}
    checked_fields[self][key] = value
  end

  function meta.__pairs(self)
    local all = {}
    for key, value in next, self do all[key] = value end
    for key, value in next, checked_fields[self] or {} do all[key] = value end
    return pairs(all)
  end
end

--- The metatable of a class: `name`; `methods`, a table, which may inherit; `fields`, names apart by spaces, each
--- of which an object may have or not. `elements`: the remedy where an object is indexed by what is not a name. `word`:
--- what errors call an object, else `name`. `checks`: function(value, self) by field, which returns nothing for a value
--- that is right, else what is expected, and a remedy, or raises an error; objects of a class with checks are made by
--- strict.object.
function strict.class(class)
  local name, methods, may = class.name, class.methods, {}
  for field in class.fields:gmatch("%S+") do may[field] = true end
  local checks = {}
  for field in pairs(may) do checks[field] = class.checks and class.checks[field] end
  local meta = {__name = name, __class = methods, may = may, checks = checks}
  local method_of = finder_of(methods, class.word or name)

  function meta.__index(self, key)
    local method = method_of(key)
    if method ~= nil or may[key] then return method end
    local known = names_of(methods, may, self)
    fail(("%s: no field or method %s%s\n  have  %s%s"):format(name, shown(key), near(key, known), listed(known),
      not is_public(key) and class.elements and "\n  fix   " .. class.elements or ""))
  end

  function meta.__newindex(self, key, value)
    if not may[key] then
      local known = names_of(may, self)
      fail(("%s: no field %s to write%s\n  have  %s\n  fix   keep what is yours in a variable of your own"):format(name,
        shown(key), near(key, known), listed(known)))
    end
    rawset(self, key, value)
  end

  if class.checks then check_assignments(name, meta) end

  function meta.__tostring(self) return text_of(self, name) end

  return meta
end

--- An object of a class with checks. The values are checked in the order of `names`: a check may read what is before.
function strict.object(meta, values, names)
  local self = setmetatable({}, meta)
  for _, name in ipairs(names) do
    if values[name] ~= nil then self[name] = values[name] end
  end
  return self
end

--- `names`, a table whose entries are all there from now on: functions of a part of mh, or things by name. `fix`: the
--- remedy for one that is missing.
function strict.table(what, names, fix)
  return setmetatable(names, {
    __index = function(_, key)
      local known = names_of(names)
      fail(("%s: no %s%s\n  have  %s%s%s"):format(what, shown(key), near(key, known), listed(known), fix
        and "\n  fix   " .. fix or "", type(key) == "string" and fix == nil and mh._python_name_hint(key) or ""))
    end,
    __newindex = function(_, key)
      local known = names_of(names)
      fail(("%s: no %s to write%s\n  have  %s\n  fix   keep what is yours in a table of your own"):format(what,
          shown(key), near(key, known), listed(known)))
    end,
    __tostring = function() return what .. ": " .. listed(names_of(names)) end,
  })
end

--- The metatable of an open record, a plain table to those who ask: the names of `fields`, apart by spaces, may be read
--- whether they are there or not, and any name may be written that is near to none of them.
function strict.record(name, fields)
  local meta, known = strict.class {name = name, methods = {}, fields = fields}, {}
  local refuse = meta.__newindex
  for field in fields:gmatch("%S+") do known[field] = true end
  function meta.__newindex(self, key, value)
    if not known[key] and near(key, names_of(known)) ~= "" then refuse(self, key, value) end
    rawset(self, key, value)
  end
  meta.__name, meta.__metatable = nil, false
  return meta
end

return strict
