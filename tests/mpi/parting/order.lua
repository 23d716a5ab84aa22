-- Fields of one shape in another order on one rank, as `next` over a table gives them.
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"x"})
local x = mh.from_local(mh.ones(2, 2), mesh, {mh.Shard(0)})
local fields = {u = x * 2, v = x + 1}
for _, name in ipairs(mh.rank() == 0 and {"u", "v"} or {"v", "u"}) do
  print("number", fields[name]:sum():item())
end
