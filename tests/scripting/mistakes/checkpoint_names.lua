-- ranks: 1
local mh = require "moonhalo"
local nn, path = mh.nn, os.getenv("SCRATCH") .. "/names"
mh.checkpoint.save(path, {model = nn.Linear(3, 2)})
mh.checkpoint.load(path, {model = nn.Sequential(nn.Linear(3, 2))})
--[==[
checkpoint_names.lua:5: checkpoint.load: 'SCRATCH/names', entry 'model': Sequential: load_state_dict: missing keys: '0.weight', '0.bias'
  also  unexpected keys: 'bias', 'weight'
  fix   make the module as it was when the state was saved, or give {strict = false}, which ignores missing and extra names
  5 | mh.checkpoint.load(path, {model = nn.Sequential(nn.Linear(3, 2))})
]==]
