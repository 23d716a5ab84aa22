-- ranks: 1
local mh = require "moonhalo"
local net, path = mh.nn.Linear(3, 2), os.getenv("SCRATCH") .. "/entries"
mh.checkpoint.save(path, {model = net})
mh.checkpoint.load(path, {net = net})
--[==[
checkpoint_entries.lua:5: checkpoint.load: 'SCRATCH/entries' has no entry 'net'
  have  model
  fix   load before you add what was not saved, then add it
  5 | mh.checkpoint.load(path, {net = net})
]==]
