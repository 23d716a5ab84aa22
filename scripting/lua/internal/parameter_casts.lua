-- SPDX-License-Identifier: Apache-2.0
-- Casts in the places of parameters while the forward of a unit of fully_shard runs (mp_policy.param_dtype).

local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"

local casts = {}
local under_way = {}  -- of all units whose forward runs, the outer ones first

--- fn(...) with casts in the places of parameters: list = {{registry, name, cast}, ...}.
function casts.call(list, fn, ...)
  local present, outer = {}, #under_way
  local _ <close> = at_end(function()
    for i = #present, 1, -1 do list[i][1][list[i][2]] = present[i] end  -- a shared registry is in the list twice
    for i = #under_way, outer + 1, -1 do under_way[i] = nil end
  end)
  for i, one in ipairs(list) do
    local registry, name, cast = table.unpack(one)
    present[i], under_way[outer + i] = registry[name], one
    registry[name] = cast
  end
  return fn(...)
end

--- A function that runs `fn` with the casts of this moment, or `fn` if there are none. A segment that is computed again
--- in backward runs outside of the forwards that it was in, and uses the tensors that it used there.
function casts.bound(fn)
  if #under_way == 0 or not arguments.is_callable(fn) then return fn end
  local list = table.move(under_way, 1, #under_way, 1, {})
  return function(...) return casts.call(list, fn, ...) end
end

return casts
