-- SPDX-License-Identifier: Apache-2.0
-- Values in messages of mh.data, in words that all ranks share: tables have addresses, which they do not.

local mh = require "moonhalo"

local text = {}

function text.of(value)
  local kind = type(value)
  if kind == "string" then return "'" .. value .. "'" end
  if kind == "number" or kind == "boolean" or kind == "nil" then return tostring(value) end
  return mh._describe(value)
end

return text
