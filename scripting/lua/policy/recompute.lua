-- SPDX-License-Identifier: Apache-2.0
-- Parts of a module whose inside is computed again in backward: placements.recompute, lists of names. A list of one
-- name is a module, a longer one neighbours in a Sequential.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"
local containers = require "moonhalo.nn.containers"
local recomputed = require "moonhalo.internal.recompute"

local fail = mh.fail
local recompute = {}

-- ---- Which parts ----------------------------------------------------------------------------------------------------

local function elements_of(module)
  local elements = 0
  for _, parameter in ipairs(module:parameters()) do elements = elements + parameter:numel() end
  return elements
end

--- A Sequential that calls its modules as the class does.
local function is_sequential(module)
  return module.forward == containers.Sequential.forward
end

local function has_forward(module) return module.forward ~= base.Module.forward end

--- Cuts neighbours into as many runs as their square root, the first ones longer: backward begins with the last. A
--- single layer keeps little but what comes into it, which is kept anyhow.
local function add_runs(names, found)
  local runs = math.ceil(math.sqrt(#names))
  local first = 1
  for i = 1, runs do
    local last = (#names * i + runs - 1) // runs
    if last > first then found[#found + 1] = {table.unpack(names, first, last)} end
    first = last + 1
  end
end

--- The parts of a module: those of module:stages(), else its children, that have parameters and modules of their own.
--- A part with more than half of all parameters is replaced by the parts in it, if there are any, as is a ModuleList.
--- Single layers in a row in a Sequential are cut into runs.
function recompute.parts(module)
  local name_of, half, within = {}, elements_of(module) / 2, nil
  for name, one in module:named_modules() do name_of[one] = name end

  local function add(child, found)
    if #child:children() == 0 or elements_of(child) == 0 then return end
    local is_part = name_of[child] and has_forward(child)
    local inner = (not is_part or elements_of(child) > half) and within(child) or {}
    if #inner == 0 and is_part then inner = {{name_of[child]}} end
    table.move(inner, 1, #inner, #found + 1, found)
  end

  function within(parent)
    local found, layers = {}, {}
    local prefix = name_of[parent] and (name_of[parent] == "" and "" or name_of[parent] .. ".")
    local in_a_row = prefix and is_sequential(parent)
    for name, child in parent._modules do
      if in_a_row and #child:children() == 0 then
        layers[#layers + 1] = prefix .. name
      else
        add_runs(layers, found)
        layers = {}
        add(child, found)
      end
    end
    add_runs(layers, found)
    return found
  end

  if not module:has("stages") then return within(module) end
  local found = {}
  for _, stage in ipairs(module:stages()) do add(stage, found) end
  return found
end

-- ---- Checks ---------------------------------------------------------------------------------------------------------

--- The place among the modules of a Sequential, from 1. Names are not numbers where one was added by name.
local function position_of(sequential, name)
  local position = 0
  for other in sequential._modules do
    position = position + 1
    if other == name then return position end
  end
end

--- The module of a name, and the Sequential that has it with its position there, if one has.
local function find(module, name)
  local found, parent, last = module, nil, nil
  for piece in name:gmatch("[^.]+") do
    parent, found, last = found, found._modules[piece], piece
    if found == nil then return nil end
  end
  if parent == nil or not is_sequential(parent) then return found end
  return found, parent, position_of(parent, last)
end

--- Refuses neighbours that do not follow each other in a Sequential.
local function check_run(who, module, names)
  local before, at
  for i, name in ipairs(names) do
    local _, parent, position = find(module, name)
    if parent == nil or i > 1 and (parent ~= before or position ~= at + 1) then
      fail(("%s: recompute has modules that do not follow each other in a Sequential\n  have  %s\n" ..
        "  fix   give each of them a list of its own"):format(who, table.concat(names, ", ")))
    end
    before, at = parent, position
  end
end

--- Checks that `parts` are lists of names of the module's modules, longer ones of neighbours in a Sequential.
function recompute.check(who, parts, module)
  local wanted = "a list of lists of names, {{\"blocks.0\"}, {\"blocks.1\"}}"
  if type(parts) ~= "table" or getmetatable(parts) then
    fail(("%s: recompute = %s, expected %s"):format(who, mh._describe(parts), wanted))
  end
  local known, given = {}, {}
  for name in module:named_modules() do known[#known + 1] = name end
  for _, names in ipairs(parts) do
    if type(names) ~= "table" or #names == 0 then
      fail(("%s: recompute has %s, expected %s"):format(who, mh._describe(names), wanted))
    end
    for _, name in ipairs(names) do
      if type(name) ~= "string" or find(module, name) == nil then
        fail(("%s: recompute names the module '%s'%s\n  have  %s"):format(who, tostring(name),
          mh.did_you_mean(tostring(name), known), table.concat(known, ", ")))
      end
      if given[name] then
        fail(("%s: recompute names the module '%s' twice\n  fix   leave it in one of the lists"):format(who, name))
      end
      given[name] = true
    end
    if #names > 1 then check_run(who, module, names) end
  end
end

-- ---- recompute.apply ------------------------------------------------------------------------------------------------

--- Has the parts of a module compute their inside again. Returns a function that undoes it.
function recompute.apply(module, parts)
  local modules, parents, last_of, undo = {}, {}, {}, {}
  for _, names in ipairs(parts or {}) do
    local found, parent, position = find(module, names[1])
    if #names == 1 then
      modules[#modules + 1] = found
    else
      if not last_of[parent] then parents[#parents + 1], last_of[parent] = parent, {} end
      last_of[parent][position] = position + #names - 1
    end
  end
  for _, parent in ipairs(parents) do undo[#undo + 1] = recomputed.runs(parent, last_of[parent]) end
  for _, found in ipairs(modules) do undo[#undo + 1] = recomputed.module(found) end
  return function()
    for i = #undo, 1, -1 do undo[i]() end
  end
end

return recompute
