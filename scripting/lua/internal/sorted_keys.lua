-- SPDX-License-Identifier: Apache-2.0
-- The keys of a table in their order, as a list.

return function(table_)
  local keys = {}
  for key in pairs(table_) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end
