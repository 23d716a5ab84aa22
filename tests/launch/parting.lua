-- SPDX-License-Identifier: Apache-2.0
-- Rank 1 ends as the first argument says, while the others wait for it.
local mh = require "moonhalo"

local how = arg[1]
local x = mh.distribute_tensor(mh.ones({6}), mh.init_device_mesh("cpu", {mh.world_size()}, {"x"}), {mh.Shard(0)})
assert(x:sum():full_tensor():item() == 6)
if how == "STOP" then mh.set_timeout(2) end
if mh.rank() == 1 then
  local pid = io.open("/proc/self/stat"):read("n")
  if how == "error" then error("the pressure is negative") end
  if how == "exit" then os.exit(5) end
  if how == "ends" then return end
  os.execute(("(sleep 20; kill -KILL %d) >/dev/null 2>&1 & kill -%s %d"):format(pid, how, pid))
end
x:sum():full_tensor()
print("rank " .. mh.rank() .. " went on")
