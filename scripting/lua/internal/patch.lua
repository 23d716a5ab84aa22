-- SPDX-License-Identifier: Apache-2.0
-- mh.patch: other forward functions for modules that are chosen by name.

local mh = require "moonhalo"
local arguments = require "moonhalo.internal.arguments"
local forward = require "moonhalo.internal.forward"

local fail = mh.fail

local function check(net, patches)
  arguments.module("patch", net)
  if type(patches) ~= "table" then fail("patch: expected a table {name = function(self, forward, ...) ... end}") end
  for name, fn in pairs(patches) do
    if type(name) ~= "string" then fail("patch: the names of modules are strings, got " .. tostring(name)) end
    if type(fn) ~= "function" then
      fail(("patch: '%s' is a %s, expected a function(self, forward, ...)"):format(name, type(fn)))
    end
  end
end

--- mh.patch(net, patches) -> table
---   Runs other functions in place of the forward of modules that are chosen by name: fn(self, forward, ...) may call
---   forward(self, ...). Hooks, those of plans too, run around it.
---   net         Module      the model
---   patches     table       functions by name or pattern of a module, {["blocks.*.fc2"] = fn}
---   returns     table       {remove}: remove() takes the patches away
---   collective  no
---   errors      ValueError: a name that matches nothing, or two patterns that fit equally well
---   example
---     local net = nn.Sequential(nn.ReLU())
---     local patched = mh.patch(net, {["0"] = function(self, forward, x) return forward(self, x) + 5 end})
---     local first = net(mh.zeros{1}):item()
---     patched.remove()
---     first, net(mh.zeros{1}):item()    --> 5.0  0.0
local function patch(net, patches)
  check(net, patches)
  local names, modules, patterns, undo = {}, {}, {}, {}
  for name, module in net:named_modules() do names[#names + 1], modules[#modules + 1] = name, module end
  for pattern in pairs(patches) do patterns[#patterns + 1] = pattern end
  local meant = mh._trees.match_modules("patch", patterns, names)
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
