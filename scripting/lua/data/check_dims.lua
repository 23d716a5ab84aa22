-- SPDX-License-Identifier: Apache-2.0
-- The options dims and space of mh.data.open and mh.data.from_tensors: names of dims.

local mh = require "moonhalo"
local text = require "moonhalo.data.text"

local fail = mh.fail

local function is_list(list, least)
  if type(list) ~= "table" or getmetatable(list) or #list < least or (#list == 0 and next(list) ~= nil) then
    return false
  end
  for _, name in ipairs(list) do
    if type(name) ~= "string" then return false end
  end
  return true
end

--- Names of all dims, or these by name of a dataset.
local function is_dims(dims)
  if is_list(dims, 1) then return true end
  if type(dims) ~= "table" or getmetatable(dims) or #dims > 0 or next(dims) == nil then return false end
  for _, list in pairs(dims) do
    if not is_list(list, 1) then return false end
  end
  return true
end

--- `have` and `of`: what there is, and of what dims are said.
return function(who, options, have, of)
  if options.dims ~= nil and not is_dims(options.dims) then
    fail(("%s: dims is %s\n  have  %s\n  fix   give the names of all dims, as {\"sample\", \"time\", \"y\", \"x\"}%s")
      :format(who, text.of(options.dims), have, of))
  end
  if options.space ~= nil and not is_list(options.space, 0) then
    fail(("%s: space is %s\n  have  %s\n  fix   give the names of dims, as {\"y\", \"x\"}"):format(who,
        text.of(options.space), have))
  end
end
