-- SPDX-License-Identifier: Apache-2.0
-- Modules whose inside is computed again in backward (mh.checkpoint) instead of being kept.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local at_end = require "moonhalo.internal.at_end"
local forward = require "moonhalo.internal.forward"

local fail = mh.fail
local recompute = {}

-- ---- Buffers --------------------------------------------------------------------------------------------------------

--- The buffers of modules and of those below, with copies of their values: {{registry, name, copy}, ...}.
local function copied_buffers(modules)
  local copied = {}
  for _, top in ipairs(modules) do
    for _, one in top:named_modules() do
      local buffers = rawget(one, "_buffers")
      for name, tensor in buffers do copied[#copied + 1] = {buffers, name, tensor:detach():clone()} end
    end
  end
  return copied
end

--- fn(...) with the values of `copied` in the place of the buffers: a later run reads what the first one has read, and
--- writes nothing that stays.
local function with_buffers(copied, fn, ...)
  local present = {}
  local _ <close> = at_end(function()
    for i, value in ipairs(present) do copied[i][1][copied[i][2]] = value end
  end)
  for i, one in ipairs(copied) do
    local buffers, name, value = table.unpack(one)
    present[i] = buffers[name]
    buffers[name] = value:clone()
  end
  return table.pack(fn(...))
end

-- ---- Results --------------------------------------------------------------------------------------------------------

local kPlain = {["nil"] = true, boolean = true, number = true, string = true}

--- Refuses results that may hide tensors, which gradients would not reach.
local function check_results(modules, results)
  local function check(value)
    if mh.is_tensor(value) or kPlain[type(value)] then return end
    if type(value) == "table" and not getmetatable(value) then
      for _, one in pairs(value) do check(one) end
      return
    end
    local names = {}
    for i, module in ipairs(modules) do names[i] = module:class_name() end
    fail(("checkpoint: what %s returns is computed again, and gradients reach tensors and tables of tensors alone\n" ..
        "  have  %s\n" ..
        "  fix   return tensors, or leave this part out (policy 'autodist': pas_config = {recompute = false})"):format(
      table.concat(names, ", "), mh._describe(value)))
  end
  for i = 1, results.n do check(results[i]) end
end

--- The results of fn(...), which may be tensors, tables of tensors, numbers, strings and booleans; what is inside of it
--- is computed again in backward. `modules`: those that fn calls.
function recompute.call(modules, fn, ...)
  if not mh.is_grad_enabled() then return fn(...) end
  local copied, results = copied_buffers(modules), nil
  local function tensors_of(found)
    local list = {}
    arguments.map_tensors(found, function(tensor) list[#list + 1] = tensor end)
    return table.unpack(list)
  end
  local ran = false
  local function run(...)
    if ran then return tensors_of(with_buffers(copied, fn, ...)) end
    results = table.pack(fn(...))
    check_results(modules, results)
    ran = true
    return tensors_of(results)
  end
  local list, taken = table.pack(mh.checkpoint(run, ...)), 0
  local given = arguments.map_tensors(results, function()
    taken = taken + 1
    return list[taken]
  end)
  results = nil
  return table.unpack(given, 1, given.n)
end

-- ---- Modules --------------------------------------------------------------------------------------------------------

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
