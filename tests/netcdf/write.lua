-- SPDX-License-Identifier: Apache-2.0
-- X17: writes on several ranks what check_netcdf.py reads with other programs: `moonhalo run write.lua FOLDER`.
local mh = require "moonhalo"
local folder = arg[1]
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"domain"})

local function field(steps) return mh.arange(steps * 5 * 8, {dtype = "float32"}):reshape{steps, 5, 8} * 0.25 end
local function cut(x, dim) return mh.distribute_tensor(x, mesh, {mh.Shard(dim)}) end

-- Coordinates after the fields; one dim without any.
local out = mh.h5.open(folder .. "/written.nc", "w")
out:write("t2m", cut(field(6), 2), {dims = {"time", "latitude", "longitude"}, compression = 4,
  attrs = {units = "K", standard_name = "air_temperature", long_name = "Temperatur in 2 m Höhe", _FillValue = -999.0,
           valid_range = {-100, 400}}})
out:write("packed", cut(mh.arange(12, {dtype = "int16"}):reshape{6, 2}, 0),
          {dims = {"time", "bounds"}, attrs = {_FillValue = 3, scale_factor = 0.5, add_offset = 10.0}})
out:write("time", mh.arange(6) * 6, {dims = {"time"}, attrs = {units = "hours since 2001-12-31 12:00",
    calendar = "standard"}})
out:write("latitude", mh.linspace(60, 40, 5), {dims = {"latitude"}, attrs = {units = "degrees_north",
    standard_name = "latitude"}})
out:write("longitude", mh.arange(8, {dtype = "float64"}) * 45, {dims = {"longitude"}, attrs = {units = "degrees_east"}})
out:write("group/deep/speed", cut(field(6), 1), {dims = {"time", "latitude", "longitude"}, chunks = {1, 5, 4}})
out:set_attr("title", "written by several ranks")
out:close()

-- Step by step, coordinates of time too.
local growing = mh.h5.open(folder .. "/grown.nc", "w")
for step = 0, 3 do
  growing:append("t2m", cut(field(1) + step, 2), {dims = {"time", "y", "x"}, attrs = {units = "K"}, compression = 1})
  growing:append("time", mh.tensor{step * 1.0}, {dims = {"time"}, attrs = {units = "days since 1990-01-01"}})
end
growing:close()

-- Like a dataset of another program's file: the selected rows.
local theirs = mh.h5.open(folder .. "/theirs.nc")["sst"]["1:, 2:6, :"]
local like = mh.h5.open(folder .. "/like.nc", "w")
like:write("forecast", mh.scatter_tensor(theirs, mesh, {mh.Shard(1)}, {decode = true}) + 1,
    {like = theirs, compression = 1})
like:close()
