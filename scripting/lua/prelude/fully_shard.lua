-- SPDX-License-Identifier: Apache-2.0
-- Puts fully_shard, replicate and build_optimizer into `mh`; the file behind them is loaded at the first use.

local mh = ...

for _, name in ipairs {"fully_shard", "replicate", "build_optimizer"} do
  rawset(mh, name, mh._framed(function(...) return require("moonhalo.internal.fully_shard")[name](...) end))
end
