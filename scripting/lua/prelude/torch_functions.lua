-- SPDX-License-Identifier: Apache-2.0
-- Puts functions of torch that are not operators into `mh`, and methods into tensors; the file behind them is loaded at
-- the first use.

local mh = ...
local strict = require "moonhalo.internal.strict"

local kHome = "moonhalo.internal.torch_functions"

for _, name in ipairs {"as_tensor", "asarray", "broadcast_shapes", "unravel_index", "unique", "numel",
    "get_default_device", "seed_everything"} do
  rawset(mh, name, mh._framed(function(...) return require(kHome).functions[name](...) end))
end
for _, name in ipairs {"new_tensor", "type", "unique"} do
  local function method(...) return require(kHome).methods[name](...) end
  rawset(mh.Tensor, name, strict.method(method, name, mh.is_tensor, "Tensor"))
end
