-- SPDX-License-Identifier: Apache-2.0
-- X01, X03, X05: depthwise 7 x 7 convolutions on circular longitudes and reflecting latitudes, on blocks thinner than
-- the halo.
local mh = require "moonhalo"
local runs = require "support.model_runs"

local line = mh.init_device_mesh(mh.device(), {3}, {"domain"})
local function cut(...) return {mesh = line, x = {mh.Shard(...)}, y = {mh.Shard(...)}} end

return runs.tests{
  {"convnext", require "support.convnext", {
    latitudes = cut(2, {5, 1, 5}), most_and_none = cut(2, {2, 0, 9}), longitudes = cut(3, {1, 7, 2}), batch = cut(0),
  }},
}
