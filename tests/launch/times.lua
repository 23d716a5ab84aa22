-- SPDX-License-Identifier: Apache-2.0
-- For times.sh: rank 1 fails while the others wait for it. Prints the seconds since the machine started.
local mh = require "moonhalo"

local function say(what) print(what, io.open("/proc/uptime"):read("n")) end

local words = {}
for word in io.open("/proc/self/stat"):read("a"):match("%) (.*)"):gmatch("%S+") do words[#words + 1] = word end
print("began", tonumber(words[20]) / 100)  -- when this process did
local x = mh.distribute_tensor(mh.ones({mh.world_size()}), mh.init_device_mesh("cpu", {mh.world_size()}), {mh.Shard(0)})
assert(x:sum():full_tensor():item() == mh.world_size())
say("joined")
mh.barrier()
if mh.rank() == 1 then
  os.execute("sleep 1")
  say("failed")
  error("the pressure is negative")
end
local ok, message = pcall(function() return x:sum():full_tensor() end)
assert(not ok, "a rank went on without rank 1")
say("returned")
error(message)
