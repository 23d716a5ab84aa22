-- ranks: 3
local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:forward(x)
  if mh.rank() == 1 then error("the disk of this rank is full") end
  return x:sum():item()
end
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 2}, mesh, {mh.Shard(0)})
Net()(x)
--[==[
rank_alone.lua:6: the disk of this rank is full
  in    Net
  6 |   if mh.rank() == 1 then error("the disk of this rank is full") end
stack traceback:
    rank_alone.lua:6: in function <rank_alone.lua:5>
    rank_alone.lua:11: in main chunk
]==]
