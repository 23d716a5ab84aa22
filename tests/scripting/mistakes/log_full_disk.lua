-- ranks: 1
-- options: --log /dev/full
local mh = require "moonhalo"
for step = 1, 3 do mh.log{step = step, loss = 1.5} end
--[==[
log_full_disk.lua:4: log: the disk refused '/dev/full': No space left on device
  fix   free space on that disk, or give --log another path
  4 | for step = 1, 3 do mh.log{step = step, loss = 1.5} end
]==]
