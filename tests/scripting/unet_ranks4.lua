-- SPDX-License-Identifier: Apache-2.0
-- X01, X05: U-Nets in 2 and 3 dims on 2 x 2 ranks.
local mh = require "moonhalo"
local runs = require "support.model_runs"
local unets = require "support.unet"

local grid = mh.init_device_mesh(mh.device(), {2, 2}, {"rows", "columns"})
local function cut(...) return {mesh = grid, x = {...}, y = {...}} end
local R, S = mh.Replicate, mh.Shard

return runs.tests{
  {"unet_2d", unets.flat, {
    plane = cut(S(2, {15, 6}), S(3, {3, 11})), one_dim_twice = cut(S(2), S(2)),
    replicated_and_rows = cut(R(), S(2, {2, 19})), batch_and_columns = cut(S(0), S(3, {13, 1})),
  }},
  {"unet_3d", unets.deep, {plane = cut(S(4, {3, 7}), S(2, {10, 1})), depth_and_replicated = cut(S(3, {0, 9}), R())}},
}
