-- SPDX-License-Identifier: Apache-2.0
-- A table with string keys that keeps the order in which keys were first set. `map[key]`, `#map`, and both
-- `for key, value in map do` and `for key, value in pairs(map) do`.

local state_of_map = require("moonhalo.internal.registries").state_of_map

local meta = {__name = "OrderedMap"}

function meta.__newindex(map, key, value)
  if value == nil then return end
  local state = state_of_map[map]
  rawset(map, key, value)
  if not state.position[key] then
    state.order[#state.order + 1] = key
    state.position[key] = #state.order
  end
end

function meta.__call(map, _, key)
  local state = state_of_map[map]
  local i = key == nil and 1 or state.position[key] + 1
  while state.order[i] ~= nil do
    local value = rawget(map, state.order[i])
    if value ~= nil then return state.order[i], value end
    i = i + 1
  end
end

function meta.__pairs(map) return map, nil, nil end

function meta.__len(map)
  local count = 0
  for _ in map do count = count + 1 end
  return count
end

return function()
  local map = setmetatable({}, meta)
  state_of_map[map] = {order = {}, position = {}}
  return map
end
