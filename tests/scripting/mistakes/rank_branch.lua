-- ranks: 2
-- status: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {2})
local x = mh.distribute_tensor(mh.ones{8, 4}, mesh, {mh.Shard(0)})
if mh.rank() == 0 then
  print(x:sum():item())
end
--[==[
rank_branch.lua:7: all_reduce: rank 0 of 2 stops: rank 1 ended without joining all_reduce (call 5 of this group)
  have  rank 0: all_reduce of Float, 1 elements, op sum (call 5 of this group), in aten::_local_scalar_dense of [] on mesh(2: dim_0): Partial(sum), made by aten::sum, at rank_branch.lua:7
  fix   every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look for a branch on the rank, an order that differs (`next` over a table), a random number, the time or a file that differs; mh.op_trace, printed on every rank, shows the first call that differs
  7 |   print(x:sum():item())
]==]
