local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.Adam(net:parameters())
opt:load_state_dict(net:state_dict())
--[==[
optimizer_state.lua:4: load_state_dict: 'param_groups' is missing
  fix   give what opt:state_dict() returned, or let mh.checkpoint.load(path, {optimizer = opt}) restore it
  4 | opt:load_state_dict(net:state_dict())
]==]
