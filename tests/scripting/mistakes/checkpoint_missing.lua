-- ranks: 1
local mh = require "moonhalo"
mh.checkpoint.load("runs/nowhere.ckpt", {model = mh.nn.Linear(3, 2)})
--[==[
checkpoint_missing.lua:3: checkpoint.load: 'runs/nowhere.ckpt' is not a checkpoint (it has no checkpoint.json)
  fix   give the path of mh.checkpoint.save, from the folder where the program runs; mh.checkpoint.latest(folder) finds the last one
  3 | mh.checkpoint.load("runs/nowhere.ckpt", {model = mh.nn.Linear(3, 2)})
]==]
