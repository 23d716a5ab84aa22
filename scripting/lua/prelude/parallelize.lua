-- SPDX-License-Identifier: Apache-2.0
-- Puts parallelize_module and what belongs to it into `mh`; the files behind them are loaded at the first use.

local mh = ...

for _, name in ipairs {"parallelize_module", "distribute_module", "finish_grad_sync"} do
  rawset(mh, name, mh._framed(function(...) return require("moonhalo.internal.parallelize")[name](...) end))
end
for _, name in ipairs {"ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput", "PrepareModuleOutput"} do
  rawset(mh, name, mh._framed(function(...) return require("moonhalo.internal.parallel_styles").classes[name](...) end))
end
