-- Rank 0 suspends all processes, itself too, for longer than the time limit (arg[1] s), while the others wait for it.
-- All go on.
local mh = require "moonhalo"
local pipe = io.popen("echo $PPID")
local mine = tonumber(pipe:read("a"))
pipe:close()
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"ranks"})
local pids = mh.from_local(mh.tensor({mine}, {dtype = "int64"}), mesh, {mh.Shard(0)}):full_tensor():tolist()
io.stderr:write("all ranks work\n")
mh.barrier()
mh.set_timeout(tonumber(arg[1]))
if mh.rank() == 0 then
  local seen, list = {}, ""
  for _, pid in ipairs(pids) do
    if not seen[pid] then list = list .. " " .. math.tointeger(pid) end
    seen[pid] = true
  end
  os.execute(("sleep 0.3; kill -STOP%s; sleep %d; kill -CONT%s; sleep 1"):format(list, tonumber(arg[1]) + 2, list))
end
mh.barrier()
if mh.rank() == 0 then print("went on") end
