-- SPDX-License-Identifier: Apache-2.0
-- X01, X02, X04: a diffusion transformer with neighbourhood attention on an odd grid, cut on 2 x 2 ranks.
local mh = require "moonhalo"
local runs = require "support.model_runs"
local dits = require "support.dit"

local grid = mh.init_device_mesh(mh.device(), {2, 2}, {"rows", "columns"})
local function cut(...) return {mesh = grid, x = {...}} end
local R, S = mh.Replicate, mh.Shard

return runs.tests{
  {"dit", dits.odd, {plane = cut(S(2, {17, 8}), S(3, {5, 12})), replicated_and_rows = cut(R(), S(2, {6, 19})),
    batch_and_columns = cut(S(0), S(3, {2, 15}))}},
  {"dit_whole_width", dits.whole_width, {plane = cut(S(3), S(2)), one_dim_twice = cut(S(2), S(2))}},
}
