-- SPDX-License-Identifier: Apache-2.0
-- A field cut along latitude and longitude, and samples divided as well: a mesh for any number of ranks.
local mh = require "moonhalo"
local ranks = mh.world_size()
local lon = ranks % 2 == 0 and 2 or 1
local lat = (ranks // lon) % 3 == 0 and 3 or 1
local mesh = mh.init_device_mesh(mh.device(), {ranks // (lat * lon), lat, lon}, {"data", "lat", "lon"})
mh.manual_seed(1)

local whole = mh.randn{4, 1, 13, 10}
local x = mh.distribute_tensor(whole, mesh, {mh.Shard(0), mh.Shard(2), mh.Shard(3)})
local conv = mh.nn.Conv2d(1, 3, 5, {padding = 2, padding_mode = "circular"})
print((conv(x):full_tensor() - conv(whole)):abs():max():item() < 1e-5)  --> true
print(mesh.shape)                                                       --> on 3 ranks: {1, 3, 1}
