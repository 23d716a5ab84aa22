local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
mh.checkpoint.save("checkpoint", net)
--[==[
save_module.lua:3: checkpoint.save: expected a table of entries by name, got one object that has a state
  fix   mh.checkpoint.save(path, {model = net})
  3 | mh.checkpoint.save("checkpoint", net)
]==]
