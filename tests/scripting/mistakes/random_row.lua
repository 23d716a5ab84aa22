-- status: 0
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()})
local x = mh.distribute_tensor(mh.arange(40):view(10, 4), mesh, {mh.Shard(1)})
local row = math.random(0, 9)
local got = x[row]:full_tensor():tolist()
if mh.rank() == 0 then print(got[1] == 4 * row, got[4] == 4 * row + 3) end
--[==[
true    true
]==]
