-- SPDX-License-Identifier: Apache-2.0
-- X08: a Fourier neural operator on a field that is cut unevenly equals the same on one plain tensor (float64, 1e-10):
-- its transforms run along the cut dims.
local mh = require "moonhalo"
local runs = require "support.model_runs"

local line = mh.init_device_mesh(mh.device(), {3}, {"domain"})
local function cut(...) return {mesh = line, x = {mh.Shard(...)}, y = {mh.Shard(...)}} end

return runs.tests{
  {"X08_fno", require "support.fno", {rows = cut(2, {1, 7, 3}), columns = cut(3, {4, 0, 5}), batch = cut(0)}},
}
