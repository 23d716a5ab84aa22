-- Rank 1 leaves by os.exit(arg[1]); the others wait for it ("wait"), compute for ever ("loop") or end too ("end").
local mh = require "moonhalo"
local status, others = tonumber(arg[1]), arg[2]
mh.barrier()
io.stderr:write("all ranks work\n")
if mh.rank() == 1 then pcall(os.exit, status) end
if others == "wait" then mh.barrier() end
while others == "loop" do end
