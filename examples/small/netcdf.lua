-- SPDX-License-Identifier: Apache-2.0
-- A field that is cut, as one NetCDF file for xarray: each rank writes its rows.
local mh = require "moonhalo"
local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"lat"})

local wind = mh.distribute_tensor(mh.arange(48.0):reshape{2, 6, 4}, mesh, {mh.Shard(1)})
local nc = mh.h5.open("wind.nc", "w")
nc:write("time", mh.tensor{0, 6}, {dims = {"time"}, attrs = {units = "hours since 2020-01-01", calendar = "standard"}})
nc:write("lat", mh.linspace(-75, 75, 6), {dims = {"lat"}, attrs = {units = "degrees_north"}})
nc:write("lon", mh.arange(0.0, 360.0, 90.0), {dims = {"lon"}, attrs = {units = "degrees_east"}})
nc:write("u10", wind, {dims = {"time", "lat", "lon"}, attrs = {units = "m s-1", long_name = "wind to the east"}})
nc:set_attr("Conventions", "CF-1.8")
nc:close()                              -- xarray.open_dataset("wind.nc")

local data = mh.data.open("wind.nc")
print(data.layout, data.steps, mh.h5.open("wind.nc").u10.units)  --> cf  2  m s-1
