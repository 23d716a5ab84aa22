-- ranks: 1
local mh = require "moonhalo"
local data = mh.data.from_tensors({u = mh.ones{8, 3, 3}}, {dims = {"time", "y", "x"}})
local set = data:windows{inputs = {fields = {"u"}, steps = {0}}}
local loader = set:loader{batch_size = 2}
--[==[
loader_batch_size.lua:5: loader: unknown option 'batch_size'
  have  loader(mesh, cut = {}, batch = 1, shuffle = false, seed = 0, drop_last = false, normalize, missing, prefetch = 2, memory = '1GiB', dtype = 'float32', transform)
  fix   give batch = n, the samples of all ranks together
  5 | local loader = set:loader{batch_size = 2}
]==]
