-- SPDX-License-Identifier: Apache-2.0
-- Puts functions of torch that are not operators into `mh`, and methods into tensors; the file behind them is loaded at
-- the first use.

local mh = ...

local kHome = "moonhalo.internal.torch_functions"

for _, name in ipairs {"as_tensor", "asarray", "broadcast_shapes", "unravel_index", "unique", "numel",
    "get_default_device", "seed_everything"} do
  rawset(mh, name, mh._framed(function(...) return require(kHome).functions[name](...) end))
end
for _, name in ipairs {"new_tensor", "type", "unique"} do
  rawset(mh.Tensor, name, mh._framed(function(...) return require(kHome).methods[name](...) end))
end
