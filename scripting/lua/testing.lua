-- SPDX-License-Identifier: Apache-2.0
-- Assertions for scripts that `moonhalo test` runs.

local mh = require "moonhalo"

local testing = {}

--- An error about values, which a dry run does not have.
local function values_differ(text)
  local note = "\n  note  in a dry run what other ranks have is zeros, and what is not computed is 1"
  mh.fail(mh.backend() == "fake" and text .. note or text)
end

local function as_tensor(value, like)
  if mh.is_tensor(value) then return value end
  return mh.tensor(value, like and {dtype = like.dtype, device = like.device} or {})
end

local function show(value)
  local text = tostring(value)
  return #text > 400 and text:sub(1, 400) .. " ..." or text
end

--- Refuses what is not a tensor, no number and no list of numbers.
local function check_numbers(what, value)
  local element = value
  while type(element) == "table" and not getmetatable(element) and #element > 0 do
    local first = element[1]
    for _, one in ipairs(element) do
      if type(one) ~= type(first) then first = one end
    end
    element = first
  end
  if not mh.is_tensor(value) and type(element) ~= "number" and type(element) ~= "boolean" then
    mh.fail(("assert_close: %s is %s, expected a tensor, a number or a list of numbers"):format(what,
        mh._describe(value)))
  end
end

local function compare(actual, expected, options)
  if options ~= nil and type(options) ~= "table" then
    mh.fail("assert_close: the options are a table, got " .. mh._describe(options))
  end
  options = options or {}
  check_numbers("the first argument", actual)
  check_numbers("the second argument", expected)
  for key in pairs(options) do
    if key ~= "rtol" and key ~= "atol" and key ~= "equal_nan" then
      mh.fail("assert_close: unknown option '" .. tostring(key) .. "'")
    end
  end
  if not mh.is_tensor(actual) then actual = as_tensor(actual, mh.is_tensor(expected) and expected or nil) end
  expected = as_tensor(expected, actual)
  local low = actual.dtype ~= "float64" and actual.dtype ~= "complex128"
  local rtol, atol = options.rtol or (low and 1e-5 or 1e-10), options.atol or (low and 1e-6 or 1e-10)
  if table.concat(actual.shape, ",") ~= table.concat(expected.shape, ",") then
    mh.fail("assert_close: shapes differ: have {" .. table.concat(actual.shape, ", ") .. "}, expected {" ..
          table.concat(expected.shape, ", ") .. "}")
  end
  if actual.dtype ~= expected.dtype then
    mh.fail("assert_close: dtypes differ: have " .. actual.dtype .. ", expected " .. expected.dtype)
  end
  local close = mh.isclose(actual, expected, rtol, atol, options.equal_nan or false)
  if not close:all():item() then
    local wrong = actual:numel() - close:sum():item()
    local message = "assert_close: " .. wrong .. " of " .. actual:numel() .. " elements differ"
    if actual.dtype ~= "bool" then
      message = message .. ", by at most " .. (actual:double() - expected:double()):abs():max():item()
    end
    values_differ(message .. "\n  have      " .. show(actual) .. "\n  expected  " .. show(expected))
  end
end

--- mh.testing.assert_close(actual, expected, options = nil) -> nothing
---   Raises an error unless shape and dtype are the same and |actual - expected| <= atol + rtol * |expected|.
---   actual      Tensor|number|table   tensors, numbers or lists of numbers
---   expected    Tensor|number|table   tensors, numbers or lists of numbers
---   options     table?      {rtol, atol, equal_nan}; rtol and atol are 1e-10 for float64, else 1e-5 and 1e-6
---   returns     nothing
---   collective  over the mesh of ShardTensors
---   errors      values differ: how many, and by how much
---   example
---     pcall(mh.testing.assert_close, mh.ones{2}, {1.0, 1.0})    --> true
function testing.assert_close(actual, expected, options) compare(actual, expected, options) end

--- True for a table of named values, or a list of such tables.
local function holds_names(value)
  if type(value) ~= "table" or getmetatable(value) then return false end
  for key, one in pairs(value) do
    if type(key) == "string" or holds_names(one) then return true end
  end
  return false
end

--- mh.testing.assert_all_close(actual, expected, options = nil) -> nothing
---   mh.testing.assert_close of every entry of two tables, and of tables in them, which have the same names.
---   actual      table       tensors by name
---   expected    table       tensors by name
---   options     table?      {rtol, atol, equal_nan}
---   returns     nothing
---   collective  over the mesh of ShardTensors
---   errors      values differ, or a name is missing
---   example
---     pcall(mh.testing.assert_all_close, {a = mh.ones{2}}, {a = {1, 1.0}})    --> true
function testing.assert_all_close(actual, expected, options)
  if type(actual) ~= "table" or type(expected) ~= "table" or mh.nn.is_module(actual) then
    mh.fail(("assert_all_close: expected two tables of tensors by name, got %s and %s"):format(mh._describe(actual),
        mh._describe(expected)))
  end
  for name, value in pairs(expected) do
    if actual[name] == nil then mh.fail("assert_all_close: '" .. tostring(name) .. "' is missing") end
    if holds_names(value) then
      testing.assert_all_close(actual[name], value, options)
    else
      compare(actual[name], value, options)
    end
  end
  for name in pairs(actual) do
    if expected[name] == nil then mh.fail("assert_all_close: '" .. tostring(name) .. "' is not expected") end
  end
end

local function equal(a, b)
  if mh.is_tensor(a) and mh.is_tensor(b) then
    return table.concat(a.shape, ",") == table.concat(b.shape, ",") and a.dtype == b.dtype and mh.equal(a, b)
  end
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for key, value in pairs(a) do
    if not equal(value, b[key]) then return false end
  end
  for key in pairs(b) do
    if a[key] == nil then return false end
  end
  return true
end

local function text_of(value)
  if type(value) == "string" then return string.format("%q", value) end
  local kind, meta = type(value), getmetatable(value)
  local by_name = kind == "function" or kind == "thread" or (kind == "userdata" and not (meta and meta.__tostring))
  if by_name then return mh._describe(value) end
  if kind ~= "table" or meta then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = text_of(item) end
  for key, item in pairs(value) do
    if math.type(key) ~= "integer" or key < 1 or key > #value then
      parts[#parts + 1] = tostring(key) .. " = " .. text_of(item)
    end
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- mh.testing.assert_equal(actual, expected) -> nothing
---   Raises an error unless the values are equal: tables by their contents, tensors by shape, dtype and every element.
---   actual      any         a value
---   expected    any         a value
---   returns     nothing
---   collective  over the mesh of ShardTensors
---   errors      values differ
---   example
---     pcall(mh.testing.assert_equal, {1, {2}}, {1, {2}})    --> true
function testing.assert_equal(actual, expected)
  if not equal(actual, expected) then
    local have, wanted = text_of(actual), text_of(expected)
    values_differ("assert_equal: values differ\n  have      " .. have .. "\n  expected  " .. wanted)
  end
end

--- mh.testing.assert_error(fn, text = nil) -> string
---   Raises an error unless fn() fails with a message that contains a string.
---   fn          function    what must fail
---   text        string?     a part of its message, no pattern
---   returns     string      the message
---   collective  as fn
---   errors      there was no error, or another one
---   example
---     mh.testing.assert_error(function() error("no such row", 0) end, "row")    --> no such row
function testing.assert_error(fn, text)
  if type(fn) ~= "function" then mh.fail("assert_error: expected a function, got " .. mh._describe(fn)) end
  if text ~= nil and type(text) ~= "string" then mh.fail("assert_error: the text is " .. mh._describe(text)) end
  local ok, message = pcall(fn)
  message = tostring(message)
  if ok then
    values_differ("assert_error: no error, expected " .. (text and "one with '" .. text .. "'" or "one"))
  end
  if text and not message:find(text, 1, true) then
    mh.fail("another error\n  have      " .. message .. "\n  expected  " .. text)
  end
  return message
end

--- mh.testing.same_as_plain(fn, inputs, options = nil) -> nothing
---   Raises an error unless fn(inputs...) gives on blocks what it gives on plain tensors: results, gradients of
---   floating-point inputs and, with gradgrad, gradients of gradients.
---   fn          function|Module   of tensors
---   inputs      {Tensor}    plain tensors, the same on all ranks
---   options     table?      {mesh, placements, draws = 10, seed = 0, gradients = true, gradgrad = false, tolerance}:
---     mesh of all ranks, placements a list for each input (empty for a plain tensor; drawn if left out), tolerance by
---     dtype
---   returns     nothing
---   collective  over all ranks
---   errors      the first difference, on every rank, with its placements
---   example
---     mh.testing.same_as_plain(function(x) return x:cumsum(0) end, {mh.randn({7, 3}, {dtype = "float64"})})
---     mh.rank() < mh.world_size()    --> true
function testing.same_as_plain(fn, inputs, options)
  local meta = type(fn) == "table" and getmetatable(fn)
  if type(fn) ~= "function" and not (meta and meta.__call) then
    mh.fail(("same_as_plain: the first argument is %s, expected a function or module"):format(mh._describe(fn)))
  end
  local are_tensors = type(inputs) == "table" and getmetatable(inputs) == nil
  for _, input in pairs(are_tensors and inputs or {}) do are_tensors = are_tensors and mh.is_tensor(input) end
  if not are_tensors then
    mh.fail(("same_as_plain: the inputs are %s, expected a list of plain tensors"):format(mh._describe(inputs)))
  end
  if options ~= nil and type(options) ~= "table" then
    mh.fail(("same_as_plain: the options are %s, expected a table"):format(mh._describe(options)))
  end
  if options and options.mesh ~= nil and type(options.mesh) == "table" and getmetatable(options.mesh) == nil then
    mh.fail("same_as_plain: mesh is a table, expected a mesh\n" ..
      "  fix   mesh = mh.init_device_mesh(mh.device(), {2, 2}, {\"a\", \"b\"}), or leave it out")
  end
  local state = {}
  local ok, text = pcall(mh._difference_from_plain, fn, inputs, options, state)
  if not ok then
    local where = state.placements and "blocks of placements " .. state.placements or "plain tensors, before any blocks"
    error(type(text) == "string" and text .. "\n  note  same_as_plain called the function with " .. where or text, 0)
  end
  if text ~= "" then values_differ("same_as_plain: blocks differ from plain tensors " .. text) end
end

return testing
