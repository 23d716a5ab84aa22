-- SPDX-License-Identifier: Apache-2.0
-- Groups: tables with keys, as settings and records have them within each other. Lists are values.

local groups = {}

--- True if a table has keys. An empty table is an empty list.
function groups.is_group(value) return type(value) == "table" and #value == 0 and next(value) ~= nil end

--- Adds the values of a group by dotted name to `into`, which it returns.
function groups.flat(values, prefix, into)
  for name, value in pairs(values) do
    if groups.is_group(value) then
      groups.flat(value, prefix .. tostring(name) .. ".", into)
    else
      into[prefix .. tostring(name)] = value
    end
  end
  return into
end

return groups
