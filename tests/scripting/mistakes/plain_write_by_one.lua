-- ranks: 2
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {mh.world_size()}, {"x"})
local out = mh.h5.open(os.getenv("SCRATCH") .. "/mixed.h5", "w")
out:write("x", mh.distribute_tensor(mh.ones{4, 4}, mesh, {mh.Shard(0)}))
if mh.rank() == 0 then out:write("t", mh.ones{2}) end out:close()
--[==[
plain_write_by_one.lua:6: all_reduce: ranks 0 and 1 of this group make different calls
  have  rank 0: all_reduce of Long, 1 elements, op max (call 10 of this group), in write of dataset "t", at plain_write_by_one.lua:6
        rank 1: all_reduce of Long, 1 elements, op max (call 10 of this group), in close of file "SCRATCH/mixed.h5", at plain_write_by_one.lua:6
  fix   every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look for a branch on the rank, an order that differs (`next` over a table), a random number, the time or a file that differs; mh.op_trace, printed on every rank, shows the first call that differs
  6 | if mh.rank() == 0 then out:write("t", mh.ones{2}) end out:close()
]==]
