-- ranks: 2
local mh = require "moonhalo"
local mesh = mh.init_device_mesh("cpu", {2}, {"tp"})
local net = mh.nn.Sequential(mh.nn.Linear(4, 8), mh.nn.ReLU(), mh.nn.Linear(8, 4))
mh.parallelize_module(net, mesh, {["fc1"] = mh.ColwiseParallel(), ["2"] = mh.RowwiseParallel()})
--[==[
plan_no_match.lua:5: parallelize_module: 'fc1' matches no module
  have  '', '0', '1', '2'
  fix   correct the name, or unmatched = "warn"
  5 | mh.parallelize_module(net, mesh, {["fc1"] = mh.ColwiseParallel(), ["2"] = mh.RowwiseParallel()})
]==]
