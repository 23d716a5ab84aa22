-- Y22: the last rank alone is sent a signal (arg[1]): all ranks are notified in the same step, save and end.
local mh = require "moonhalo"
local rank, last = mh.rank(), mh.world_size() - 1
io.stderr:write("all ranks work\n")
assert(mh.signalled() == nil)
if rank == last then assert(os.execute(("kill -%s $PPID"):format(arg[1]))) end
local step = 0
repeat
  step = step + 1
  local signal = mh.signalled()
until signal
assert(mh.signalled() == "SIG" .. arg[1])
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"ranks"})
local steps = mh.from_local(mh.tensor({step}, {dtype = "int64"}), mesh, {mh.Shard(0)}):full_tensor()
assert(steps:eq(step):all():item(), "ranks end in different steps")
if rank == 0 then print("saved after SIG" .. arg[1]) end
