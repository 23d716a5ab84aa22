-- Rank 0 writes a checkpoint for longer than the time limit (arg[1] s); the others wait for it.
local mh = require "moonhalo"
local write = mh._files.write
mh._files.write = function(...)
  os.execute("sleep " .. 2 * tonumber(arg[1]))
  return write(...)
end
mh.barrier()
io.stderr:write("all ranks work\n")
mh.set_timeout(tonumber(arg[1]))
local path = os.getenv("TMPDIR") .. "/slow_save"  -- of this test alone
mh.checkpoint.save(path, {x = mh.ones(3)})
local sum = mh.checkpoint.load(path).x:sum():item()
if mh.rank() == 0 then print("saved", sum) end
