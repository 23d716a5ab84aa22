-- ranks: 2
-- status: 3
local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
if mh.rank() == 0 then
  mh.checkpoint.save(os.getenv("SCRATCH") .. "/half", {model = net})
end
--[==[
rank_branch_save.lua:6: broadcast: rank 0 of 2 stops: rank 1 ended without joining broadcast (call 1 of this group)
  have  rank 0: broadcast of Long, 1 elements, root 0 (call 1 of this group), at rank_branch_save.lua:6
  fix   every rank makes the same calls in the same order, with the same shapes, dtypes and numbers. Look for a branch on the rank, an order that differs (`next` over a table), a random number, the time or a file that differs; mh.op_trace, printed on every rank, shows the first call that differs
  6 |   mh.checkpoint.save(os.getenv("SCRATCH") .. "/half", {model = net})
]==]
