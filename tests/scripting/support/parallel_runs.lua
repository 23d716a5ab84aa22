-- SPDX-License-Identifier: Apache-2.0
-- What tests of models on several ranks share.
local mh = require "moonhalo"

local runs = {kF64 = {dtype = "float64"}}

--- All ranks in a row, for samples of their own.
function runs.row() return mh.init_device_mesh(mh.device(), {mh.world_size()}, {"dp"}) end

--- The same float64 numbers in every call and on every rank that gives the same seed.
function runs.random(seed, shape)
  mh.manual_seed(seed)
  return mh.randn(shape, runs.kF64)
end

--- A module of float64 whose weights are the same in every call and on every rank.
function runs.seeded(make, ...)
  mh.manual_seed(5)
  return make(...):double()
end

--- `x` without its graph, whole.
function runs.plain(x)
  x = x:detach()
  return x:is_shard_tensor() and x:full_tensor() or x
end

--- A ComputeConfig for plans of `plan` ranks on `runtime`, with the fields of `more`.
function runs.config_of(plan, runtime, more)
  local fields = {plan_ngpus = plan, runtime_ngpus = runtime}
  for key, value in pairs(more or {}) do fields[key] = value end
  return mh.ComputeConfig(fields)
end

return runs
