-- SPDX-License-Identifier: Apache-2.0
-- mh.patch: other forward functions for modules that are chosen by name.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"
local forward = require "moonhalo.internal.forward"

local fail = mh.fail

local function check(net, patches)
  if not base.is_module(net) then fail("patch: wanted an nn.Module, got " .. mh._describe(net)) end
  if type(patches) ~= "table" then fail("patch: wanted a table {name = function(self, forward, ...) ... end}") end
  for name, fn in pairs(patches) do
    if type(name) ~= "string" then fail("patch: the names of modules are texts, got " .. tostring(name)) end
    if type(fn) ~= "function" then
      fail(("patch: '%s' is a %s, wanted a function(self, forward, ...)"):format(name, type(fn)))
    end
  end
end

--- `patches`: names of modules, or patterns as in plans ("blocks.*.fc2"), to functions `fn(self, forward, ...)` that
--- run instead of the module's forward; `forward(self, ...)` is what ran before. Hooks, those of a plan too, run around
--- them as ever, so parallelize_module may come before or after. Returns an object whose `remove()` takes the patches
--- off again. A name that matches nothing is an error, as are two equally good ones for a module.
local function patch(net, patches)
  check(net, patches)
  local names, modules, patterns, undo = {}, {}, {}, {}
  for name, module in net:named_modules() do names[#names + 1], modules[#modules + 1] = name, module end
  for pattern in pairs(patches) do patterns[#patterns + 1] = pattern end
  local meant, unused, ties = mh._plans.match_names(patterns, names)
  if unused[1] then
    fail(("patch: '%s' matches no module%s"):format(unused[1], mh.did_you_mean(unused[1], names)))
  end
  if ties[1] then
    fail(("patch: '%s' and '%s' both match '%s'\n  fix   give the exact name an entry of its own"):format(ties[1][2],
      ties[1][3], ties[1][1]))
  end
  for i, module in ipairs(modules) do
    local fn = patches[patterns[meant[i]]]
    if fn then
      undo[#undo + 1] = forward.replace(module, function(inner)
        return function(self, ...) return fn(self, inner, ...) end
      end)
    end
  end
  return {
    remove = function()
      for i = #undo, 1, -1 do undo[i]() end
      undo = {}
    end,
  }
end

return {patch = patch}
