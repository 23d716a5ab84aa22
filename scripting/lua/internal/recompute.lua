-- SPDX-License-Identifier: Apache-2.0
-- Modules whose inside is computed again in backward (mh.checkpoint) instead of being kept.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local forward = require "moonhalo.internal.forward"

local recompute = {}

--- fn(...) with copies in the place of the buffers of `modules`: statistics that the first run has written already must
--- not be written again by the second.
local function with_copied_buffers(modules, fn, ...)
  local undo = {}
  for _, top in ipairs(modules) do
    for _, one in top:named_modules() do
      local buffers = rawget(one, "_buffers")
      for name, tensor in buffers do undo[#undo + 1] = {buffers, name, tensor} end
    end
  end
  for _, one in ipairs(undo) do one[1][one[2]] = one[3]:detach():clone() end
  local results = table.pack(pcall(fn, ...))
  for _, one in ipairs(undo) do one[1][one[2]] = one[3] end
  if not results[1] then error(results[2], 0) end
  return table.pack(table.unpack(results, 2, results.n))
end

--- The results of fn(...), which may be tensors, tables of tensors and other values; what is inside of it is computed
--- again in backward. `modules`: those that fn calls.
function recompute.call(modules, fn, ...)
  local ran, results = false, nil
  local function tensors_of(...)
    local found, list = ran and with_copied_buffers(modules, fn, ...) or table.pack(fn(...)), {}
    arguments.map_tensors(found, function(tensor) list[#list + 1] = tensor end)
    if not ran then ran, results = true, found end
    return table.unpack(list)
  end
  local list, taken = table.pack(mh.checkpoint(tensors_of, ...)), 0
  local given = arguments.map_tensors(results, function()
    taken = taken + 1
    return list[taken]
  end)
  results = nil
  return table.unpack(given, 1, given.n)
end

--- Has a module compute its inside again. Returns a function that undoes it.
function recompute.module(module)
  return forward.replace(module, function(inner)
    return function(self, ...)
      return recompute.call({self}, function(...) return inner(self, ...) end, ...)
    end
  end)
end

--- Has a Sequential compute what is inside of runs of its modules again: last_of = {[first position] = last position}.
--- Returns a function that undoes it.
function recompute.runs(sequential, last_of)
  return forward.replace(sequential, function()
    return function(self, ...)
      local values, children, at = table.pack(...), self:children(), 1
      while at <= #children do
        local run = {table.unpack(children, at, last_of[at] or at)}
        local function through(...)
          local passed = table.pack(...)
          for _, child in ipairs(run) do passed = table.pack(child(table.unpack(passed, 1, passed.n))) end
          return table.unpack(passed, 1, passed.n)
        end
        local function call(...)
          if #run == 1 then return through(...) end
          return recompute.call(run, through, ...)
        end
        values = table.pack(call(table.unpack(values, 1, values.n)))
        at = at + #run
      end
      return table.unpack(values, 1, values.n)
    end
  end)
end

return recompute
