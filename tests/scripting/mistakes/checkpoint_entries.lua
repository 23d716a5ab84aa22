-- ranks: 1
local mh = require "moonhalo"
local net, path = mh.nn.Linear(3, 2), os.getenv("SCRATCH") .. "/entries"
mh.checkpoint.save(path, {model = net})
mh.checkpoint.load(path, {net = net})
--[==[
checkpoint_entries.lua:5: checkpoint.load: 'SCRATCH/entries' has no entry 'net'
  have  model
  fix   use one of these names; what was not saved must not be in the table
  5 | mh.checkpoint.load(path, {net = net})
]==]
