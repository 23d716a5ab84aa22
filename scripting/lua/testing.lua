-- SPDX-License-Identifier: Apache-2.0
-- Assertions for scripts that `moonhalo test` runs.

local mh = require "moonhalo"

local testing = {}

local function as_tensor(value, like)
  if mh.is_tensor(value) then return value end
  return mh.tensor(value, {dtype = like and like.dtype or nil})
end

local function show(value)
  local text = tostring(value)
  return #text > 400 and text:sub(1, 400) .. " ..." or text
end

local function compare(actual, expected, options)
  options = options or {}
  for key in pairs(options) do
    if key ~= "rtol" and key ~= "atol" and key ~= "equal_nan" then
      error("assert_close: unknown option '" .. tostring(key) .. "'", 3)
    end
  end
  if not mh.is_tensor(actual) then actual = as_tensor(actual, mh.is_tensor(expected) and expected or nil) end
  expected = as_tensor(expected, actual)
  local low = actual.dtype ~= "float64" and actual.dtype ~= "complex128"
  local rtol, atol = options.rtol or (low and 1e-5 or 1e-10), options.atol or (low and 1e-6 or 1e-10)
  if table.concat(actual.shape, ",") ~= table.concat(expected.shape, ",") then
    error("shapes differ: have {" .. table.concat(actual.shape, ", ") .. "}, expected {" ..
          table.concat(expected.shape, ", ") .. "}", 3)
  end
  if actual.dtype ~= expected.dtype then
    error("dtypes differ: have " .. actual.dtype .. ", expected " .. expected.dtype, 3)
  end
  local close = mh.isclose(actual, expected, rtol, atol, options.equal_nan or false)
  if not close:all():item() then
    local wrong = actual:numel() - close:sum():item()
    local message = wrong .. " of " .. actual:numel() .. " elements differ"
    if actual.dtype ~= "bool" then
      message = message .. ", by at most " .. (actual:double() - expected:double()):abs():max():item()
    end
    error(message .. "\n  have      " .. show(actual) .. "\n  expected  " .. show(expected), 3)
  end
end

--- Same shape and dtype, and |actual - expected| <= atol + rtol * |expected|. `expected` may be a number or list.
--- Options rtol, atol (1e-10 for float64, else 1e-5 and 1e-6), equal_nan.
function testing.assert_close(actual, expected, options) compare(actual, expected, options) end

--- assert_close for every entry of the table `expected`; `actual` has the same names.
function testing.assert_all_close(actual, expected, options)
  for name, value in pairs(expected) do
    if actual[name] == nil then error("'" .. tostring(name) .. "' is missing", 2) end
    compare(actual[name], value, options)
  end
  for name in pairs(actual) do
    if expected[name] == nil then error("'" .. tostring(name) .. "' is not expected", 2) end
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
  if type(value) ~= "table" or getmetatable(value) then return tostring(value) end
  local parts = {}
  for i, item in ipairs(value) do parts[i] = text_of(item) end
  for key, item in pairs(value) do
    if math.type(key) ~= "integer" or key < 1 or key > #value then
      parts[#parts + 1] = tostring(key) .. " = " .. text_of(item)
    end
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- Equal values; tables are compared by content, tensors by shape, dtype and every element.
function testing.assert_equal(actual, expected)
  if not equal(actual, expected) then
    error("values differ\n  have      " .. text_of(actual) .. "\n  expected  " .. text_of(expected), 2)
  end
end

--- `fn()` must fail with a message that contains `text` (plain, no pattern). Returns the message.
function testing.assert_error(fn, text)
  local ok, message = pcall(fn)
  message = tostring(message)
  if ok then error("no error, expected one with '" .. tostring(text) .. "'", 2) end
  if text and not message:find(text, 1, true) then
    error("another error\n  have      " .. message .. "\n  expected  " .. text, 2)
  end
  return message
end

return testing
