-- Rank 1 (all ranks where they are threads) may take no more memory than it has, and no thread's stack fits: its
-- error is reported and ends all.
local mh = require "moonhalo"
mh.barrier()
io.stderr:write("all ranks work\n")
if mh.rank() == 1 then
  os.execute("prlimit --pid $PPID --as=$(( $(awk '/VmSize/ {print $2}' /proc/$PPID/status) * 1024 + 3000000 ))")
  error("the valve is stuck")
end
mh.barrier()
