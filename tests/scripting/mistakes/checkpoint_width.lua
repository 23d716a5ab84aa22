-- ranks: 1
local mh = require "moonhalo"
local path = os.getenv("SCRATCH") .. "/width"
mh.checkpoint.save(path, {model = mh.nn.Linear(3, 2)})
mh.checkpoint.load(path, {model = mh.nn.Linear(4, 2)})
--[==[
checkpoint_width.lua:5: checkpoint.load: 'SCRATCH/width', entry 'model': Linear: load_state_dict: 'weight' has shape [2, 3], the module's is [2, 4]
  fix   make the module as it was when the state was saved
  5 | mh.checkpoint.load(path, {model = mh.nn.Linear(4, 2)})
]==]
