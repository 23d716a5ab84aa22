-- SPDX-License-Identifier: Apache-2.0
-- X01, X05: U-Nets in 2 and 3 dims on blocks, some of them empty from the second level on.
local mh = require "moonhalo"
local runs = require "support.model_runs"
local unets = require "support.unet"

local line = mh.init_device_mesh(mh.device(), {3}, {"domain"})
local function cut(...) return {mesh = line, x = {mh.Shard(...)}, y = {mh.Shard(...)}} end

return runs.tests{
  {"unet_2d", unets.flat, {
    rows = cut(2, {13, 2, 6}), a_row_and_none = cut(2, {1, 20, 0}), columns = cut(3, {4, 3, 7}), batch = cut(0),
  }},
  {"unet_3d", unets.deep, {rows = cut(2, {2, 8, 1}), columns = cut(4, {5, 0, 5})}},
}
