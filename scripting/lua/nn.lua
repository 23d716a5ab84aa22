-- SPDX-License-Identifier: Apache-2.0
-- mh.nn: modules in Lua on the operators of LibTorch, with torch.nn's names.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"
local strict = require "moonhalo.internal.strict"

local nn = {
  Module = base.Module,
  Parameter = base.Parameter,
  is_module = base.is_module,
  init = require "moonhalo.nn.init",
  functional = require "moonhalo.functional",
}

for _, part in ipairs {"containers", "layers", "conv", "norm", "pool", "window", "activation", "attention",
    "neighborhood", "recurrent", "transformer", "losses", "adaptive_softmax"} do
  for name, value in pairs(require("moonhalo.nn." .. part)) do
    if base.is_class(value) then nn[name] = value end
  end
end

local function is_a(value, class)
  local of = base.is_module(value) and getmetatable(value).class
  while of and of ~= class do of = rawget(of, "super") end
  return of
end

--- Methods that a class adds to the base class say so, too, when they are called with a dot. Not forward and init,
--- which nest as modules do: one more call of C would halve how deep.
local function check_self(class)
  local methods = {}
  for name, method in pairs(class) do
    local nests = name == "forward" or name == "init"
    if type(method) == "function" and not nests and name:sub(1, 1) ~= "_" then methods[name] = method end
  end
  for name, method in pairs(methods) do
    class[name] = strict.method(method, name, function(value) return is_a(value, class) end, "Module")
  end
end

local checked = {}
for _, class in pairs(nn) do
  while base.is_class(class) and class ~= base.Module and not checked[class] do
    check_self(class)
    checked[class], class = true, class.super
  end
end

nn.utils = require "moonhalo.nn.utils"

return setmetatable(nn, {
  __index = function(_, key)
    local known = {}
    for name in pairs(nn) do known[#known + 1] = name end
    mh.fail("nn: no module '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), known)
        .. mh._python_name_hint(tostring(key)))
  end,
})
