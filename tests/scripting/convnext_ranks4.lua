-- SPDX-License-Identifier: Apache-2.0
-- X01, X03, X05: depthwise 7 x 7 convolutions on circular longitudes and reflecting latitudes, on 2 x 2 ranks.
local mh = require "moonhalo"
local runs = require "support.model_runs"

local grid = mh.init_device_mesh(mh.device(), {2, 2}, {"latitudes", "longitudes"})
local function cut(...) return {mesh = grid, x = {...}, y = {...}} end
local R, S = mh.Replicate, mh.Shard

return runs.tests{
  {"convnext", require "support.convnext", {
    plane = cut(S(2, {9, 2}), S(3, {1, 9})), crossed = cut(S(3), S(2, {0, 11})), one_dim_twice = cut(S(3), S(3)),
    replicated_and_latitudes = cut(R(), S(2, {4, 7})), batch_and_longitudes = cut(S(0), S(3, {8, 2})),
  }},
}
