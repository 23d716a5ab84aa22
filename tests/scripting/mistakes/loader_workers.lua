-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.from_tensors({u = mh.ones{8, 3, 3}}, {dims = {"time", "y", "x"}})
local set = data:windows{inputs = {fields = {"u"}, steps = {0}}}
local loader = set:loader{batch = 2, num_workers = 4}
--[==[
loader_workers.lua:5: loader: unknown option 'num_workers'
  have  loader(mesh, cut = {}, batch = 1, shuffle = false, seed = 0, drop_last = false, normalize, missing, prefetch = 2, memory = '1GiB', dtype = 'float32', transform)
  fix   leave it out: a thread reads `prefetch` batches ahead
  5 | local loader = set:loader{batch = 2, num_workers = 4}
]==]
