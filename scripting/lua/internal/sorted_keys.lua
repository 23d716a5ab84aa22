-- SPDX-License-Identifier: Apache-2.0
-- The keys of a table in their order, as a list: of several types one type behind the other, so that all ranks agree.

local function before(a, b)
  local type_a, type_b = type(a), type(b)
  if type_a ~= type_b then return type_a < type_b end
  if type_a == "boolean" then return not a and b end
  return a < b
end

return function(table_)
  local keys, kind, alike = {}, nil, true
  for key in pairs(table_) do
    keys[#keys + 1], kind = key, kind or type(key)
    alike = alike and type(key) == kind and kind ~= "boolean"
  end
  if alike then table.sort(keys) else table.sort(keys, before) end
  return keys
end
