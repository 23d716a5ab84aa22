-- SPDX-License-Identifier: Apache-2.0
-- mh.nn: modules in Lua on the operators of LibTorch, with torch.nn's names.

local mh = require "moonhalo"
local base = require "moonhalo.nn.module"

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

nn.utils = require "moonhalo.nn.utils"

return setmetatable(nn, {
  __index = function(_, key)
    local known = {}
    for name in pairs(nn) do known[#known + 1] = name end
    mh.fail("nn: no module '" .. tostring(key) .. "'" .. mh.did_you_mean(tostring(key), known)
        .. mh._python_name_hint(tostring(key)))
  end,
})
