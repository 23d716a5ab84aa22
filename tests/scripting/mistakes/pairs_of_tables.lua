-- ranks: 3
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {3})
local x = mh.distribute_tensor(mh.ones{9, 2}, mesh, {mh.Shard(0)})
local weights = {[{"mse"}] = 1.0, [{"mae"}] = 0.5}
for _, weight in pairs(weights) do
  print((x * weight):sum():item())
end
--[==[
pairs_of_tables.lua:7: pairs: a collective call inside a loop whose order ranks do not share
  have  pairs_of_tables.lua:6: a loop over 2 keys that are tables, functions or objects
  fix   loop over a list (ipairs), or use numbers or strings as keys
  call  Tensor float32 [9, 2] * 1.0
  7 |   print((x * weight):sum():item())
]==]
