-- SPDX-License-Identifier: Apache-2.0
-- X01, X02, X04: a diffusion transformer with neighbourhood attention on an odd grid, cut along one dim.
local mh = require "moonhalo"
local runs = require "support.model_runs"
local dits = require "support.dit"

local line = mh.init_device_mesh(mh.device(), {3}, {"domain"})
local function cut(...) return {mesh = line, x = {mh.Shard(...)}} end

return runs.tests{
  {"dit", dits.odd, {rows = cut(2, {14, 4, 7}), odd_rows = cut(2, {13, 1, 11}), columns = cut(3, {3, 0, 14}),
  batch = cut(0)}}, {"dit_whole_width", dits.whole_width, {rows = cut(2, {1, 2, 22}), columns = cut(3, {7, 5, 5})}},
}
