-- status: 0
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()})
local x = mh.distribute_tensor(mh.arange(12, {dtype = "float32"}), mesh, {mh.Shard(0)})
local metrics, found = {mse = x:square():mean(), mae = x:abs():mean(), max = x:max(), bias = x:sum()}, {}
for name, value in pairs(metrics) do found[#found + 1] = name .. " " .. value:item() end
if mh.rank() == 0 then print(table.concat(found, ", ")) end
--[==[
bias 66.0, mae 5.5, max 11.0, mse 42.166667938232
]==]
