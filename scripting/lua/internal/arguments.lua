-- SPDX-License-Identifier: Apache-2.0
-- Calls as in PyTorch: positional values, then names in a last table, `nn.Conv2d(3, 8, 3, {padding = 1})`. Errors name
-- the function, the argument and the value, by mh._describe: an address would differ from rank to rank.
-- tests/scripting/wrong_calls.lua calls every public function wrongly.

local mh = require "moonhalo"

local fail = mh.fail

local arguments = {}

--- Signatures by the names of their functions, which the reference is compared with; of a module, that of its class.
arguments.signatures = {}

local kNone = {}

--- A parameter that may be left out and then is nil.
function arguments.optional(name) return {name, kNone} end

--- True if `value` is a table of named options: no metatable but that of settings, no list part, string keys (or
--- nothing at all).
function arguments.is_options(value)
  if type(value) ~= "table" or rawlen(value) > 0 then return false end
  local meta = getmetatable(value)
  if meta ~= nil and meta.__name ~= "config" then return false end
  for key in rawpairs(value) do
    if type(key) ~= "string" then return false end
  end
  return true
end

--- The signature of `op`: entries are a name (required), {name, default}, or arguments.optional(name). A default of
--- true or false allows these two alone, unless {name, default, mixed = true}: 0 is true for Lua. `elsewhere`: what to
--- give for options that other programs have, by their names.
function arguments.signature(op, entries, elsewhere)
  local signature = {op = op, names = {}, position = {}, default = {}, required = {}, flag = {},
    elsewhere = elsewhere or {}}
  for i, entry in ipairs(entries) do
    local name = type(entry) == "table" and entry[1] or entry
    signature.names[i], signature.position[name] = name, i
    if type(entry) == "string" then
      signature.required[#signature.required + 1] = name
    elseif entry[2] ~= kNone then
      signature.default[name] = entry[2]
      signature.flag[name] = type(entry[2]) == "boolean" and not entry.mixed
    end
  end
  arguments.signatures[op] = arguments.signatures[op] or signature
  return signature
end

local function call_of(signature)
  local shown = {}
  for i, name in ipairs(signature.names) do
    local default = signature.default[name]
    shown[i] = default == nil and name or name .. " = " .. mh._describe(default)
  end
  return signature.op .. "(" .. table.concat(shown, ", ") .. ")"
end

local function usage(signature) return "\n  have  " .. call_of(signature) end

local function refuse_surplus(signature, count, given)
  if mh.is_tensor(given[1]) and rawget(mh.nn, signature.op) then
    fail(mh._surplus_text(signature.op, count, #signature.names, "", nil):match("^[^\n]+") .. usage(signature)
      .. "\n  fix   make the layer first, then call it: nn." .. signature.op .. "()(x)")
  end
  local first = #signature.names + 1
  while given[first] == nil do first = first + 1 end
  fail(mh._surplus_text(signature.op, count, #signature.names, call_of(signature), given[first]))
end

--- The values of a call by name. Errors name the option, the nearest known one and the signature.
function arguments.read(signature, ...)
  local count, given = select("#", ...), {...}
  local values, options = {}, nil
  if count > 0 and arguments.is_options(given[count]) then
    options, count = given[count], count - 1
  end
  while count > #signature.names and given[count] == nil do count = count - 1 end
  if count > #signature.names then refuse_surplus(signature, count, given) end
  for i = 1, count do values[signature.names[i]] = given[i] end
  for name, value in pairs(options or {}) do
    local position = signature.position[name]
    if not position then
      local fix = signature.elsewhere[name]
      fail(signature.op .. ": unknown option '" .. tostring(name) .. "'"
          .. mh.did_you_mean(tostring(name), signature.names)
        .. usage(signature) .. (fix and "\n  fix   " .. fix or ""))
    end
    if position <= count and values[name] ~= nil then
      fail(signature.op .. ": '" .. name .. "' is given twice, by position and by name" .. usage(signature))
    end
    values[name] = value
  end
  for _, name in ipairs(signature.required) do
    if values[name] == nil then fail(signature.op .. ": '" .. name .. "' is missing" .. usage(signature)) end
  end
  for name, default in pairs(signature.default) do
    if values[name] == nil then values[name] = default end
    if signature.flag[name] then arguments.flag(signature.op, name, values[name]) end
  end
  return values
end

--- Returns define(name, entries, run): it makes target[name] with a signature, whose `run` gets the values by name, and
--- the name. `tensors`: the names of arguments that are tensors.
function arguments.definer(target, tensors)
  return function(name, entries, run)
    local spec = arguments.signature(name, entries)
    target[name] = function(...)
      local values = arguments.read(spec, ...)
      for _, required in ipairs(spec.required) do
        if tensors[required] then arguments.tensor(name, required, values[required]) end
      end
      return run(values, name)
    end
  end
end

--- `value`, a tensor, or an error that names the argument.
function arguments.tensor(op, name, value)
  if not mh.is_tensor(value) then fail(("%s: %s is %s, expected a tensor"):format(op, name, mh._describe(value))) end
  return value
end

--- `value`, an nn.Module, or an error.
function arguments.module(op, value)
  if not mh.nn.is_module(value) then fail(op .. ": expected an nn.Module, got " .. mh._describe(value)) end
  return value
end

--- `value`, a table or nil, or an error: options that a function takes beside its arguments.
function arguments.options(op, value)
  if value ~= nil and not arguments.is_options(value) then
    fail(("%s: the options are a table, got %s\n  fix   write {name = value}"):format(op, mh._describe(value)))
  end
  return value or {}
end

--- `value`, a number other than NaN, or an error that names the argument.
function arguments.number(op, name, value)
  if type(value) ~= "number" or value ~= value then
    fail(("%s: %s is %s, expected a number"):format(op, name, mh._describe(value)))
  end
  return value
end

--- True if `value` may be a list: a table, but not a module, a class or another object. {} with the functions of
--- `table` as methods is one.
function arguments.is_list(value)
  if type(value) ~= "table" then return false end
  local meta = getmetatable(value)
  return not meta or (type(meta) == "table" and rawget(meta, "__name") == nil and rawget(meta, "__call") == nil)
end

--- `value`, a list, or an error. Names beside its elements, {a, fc = b}, and elements behind a nil would be left out
--- without a word; the n of table.pack may be there. `what`: "a list of modules".
function arguments.list(op, what, value)
  if not arguments.is_list(value) then fail(("%s: expected %s, got %s"):format(op, what, mh._describe(value))) end
  local names, last = {}, 0
  for key in rawpairs(value) do
    local length = key == "n" and rawget(value, key)
    if math.type(length) == "integer" and length >= rawlen(value) then
      last = math.max(last, length)
    elseif type(key) == "string" then
      names[#names + 1] = key
    elseif math.type(key) == "integer" then
      last = math.max(last, key)
    end
  end
  if #names > 0 then
    table.sort(names)
    fail(("%s: expected %s, which has no names\n  have  the name '%s'\n  fix   leave the names out: {a, b}"):format(op,
        what, names[1]))
  end
  for i = 1, last do
    if value[i] == nil then
      fail(("%s: element %d of the list is nil\n  have  %s of %d elements\n" ..
          "  fix   look at the variable that stands there"):format(op, i, what:match("a list.*$") or "a list", last))
    end
  end
  return value
end

--- `value`, true or false, or an error that names the argument.
function arguments.flag(op, name, value)
  if type(value) ~= "boolean" then
    fail(("%s: %s is %s, expected true or false"):format(op, name, mh._describe(value)))
  end
  return value
end

--- The option `name` of a function that has no other, true or false.
function arguments.only_flag(op, options, name, default)
  for key in pairs(arguments.options(op, options)) do arguments.choice(op, "option", key, {name}) end
  if options == nil or options[name] == nil then return default end
  return arguments.flag(op, name, options[name])
end

--- `value`, a list of true and false, or an error that names the argument.
function arguments.flags(op, name, value)
  local plain = type(value) == "table" and not getmetatable(value) and (#value > 0 or next(value) == nil)
  for i = 1, plain and #value or 0 do plain = plain and type(value[i]) == "boolean" end
  if not plain then
    fail(("%s: %s is %s, expected a list of true and false"):format(op, name, mh._describe(value)))
  end
  return value
end

function arguments.is_callable(value)
  local meta = getmetatable(value)
  return type(value) == "function" or (type(meta) == "table" and meta.__call ~= nil)
end

--- `value`, which can be called, or an error that names the argument.
function arguments.callable(op, name, value)
  if not arguments.is_callable(value) then
    fail(("%s: %s is %s, expected a function"):format(op, name, mh._describe(value)))
  end
  return value
end

--- `value`, a string, or an error that names the argument.
function arguments.text(op, name, value)
  if type(value) ~= "string" then fail(("%s: %s is %s, expected a string"):format(op, name, mh._describe(value))) end
  return value
end

--- `value`, an integer of at least `least`, or an error that names the argument.
function arguments.count(op, name, value, least)
  if math.type(value) ~= "integer" or value < least then
    fail(("%s: %s is %s, expected an integer of at least %d"):format(op, name, mh._describe(value), least))
  end
  return value
end

--- `value`, a list of integers, or an error that names the argument.
function arguments.counts(op, name, value)
  local count = type(value) == "table" and rawlen(value) or 0
  local plain = count > 0
  for i = 1, count do plain = plain and math.type(rawget(value, i)) == "integer" end
  if not plain then fail(("%s: %s is %s, expected a list of integers"):format(op, name, mh._describe(value))) end
  return value
end

--- `value`, a number of bins of a histogram, whose counts are lists of Lua.
function arguments.bins(op, value)
  if arguments.count(op, "bins", value, 1) > 10000 then
    fail(("%s: bins is %d, expected at most 10000"):format(op, value))
  end
  return value
end

--- `value` once per dimension: a number is repeated, a list must have `count` numbers.
function arguments.tuple(op, name, value, count)
  if type(value) == "table" and not getmetatable(value) then
    if #value ~= count then
      fail(("%s: %s has %d numbers, expected one or %d"):format(op, name, #value, count))
    end
    for i, one in ipairs(value) do arguments.number(op, ("%s[%d]"):format(name, i), one) end
    return {table.unpack(value)}
  end
  if type(value) ~= "number" or value ~= value then
    fail(("%s: %s is %s, expected a number or a list of %d"):format(op, name, mh._describe(value), count))
  end
  local list = {}
  for i = 1, count do list[i] = value end
  return list
end

--- `value` with fn(x) in the place of every tensor x that it is, or has in its tables.
function arguments.map_tensors(value, fn)
  if mh.is_tensor(value) then return fn(value) end
  if type(value) ~= "table" or getmetatable(value) then return value end
  local copy = {}
  for key, one in pairs(value) do copy[key] = arguments.map_tensors(one, fn) end
  return copy
end

--- fn for map_tensors, called once for each tensor: one that is in several places stays one.
function arguments.once(fn)
  local results = {}
  return function(tensor)
    if results[tensor] == nil then results[tensor] = fn(tensor) end
    return results[tensor]
  end
end

--- One of `known`, or an error that names the nearest.
function arguments.choice(op, name, value, known)
  for _, one in ipairs(known) do
    if one == value then return value end
  end
  if type(value) ~= "string" then
    fail(("%s: unknown %s %s\n  have  %s"):format(op, name, mh._describe(value), table.concat(known, ", ")))
  end
  fail(("%s: unknown %s '%s'%s\n  have  %s"):format(op, name, value, mh.did_you_mean(value, known),
      table.concat(known, ", ")))
end

return arguments
