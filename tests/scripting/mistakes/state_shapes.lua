local mh = require "moonhalo"
local small, large = mh.nn.Linear(3, 2), mh.nn.Linear(4, 2)
small:load_state_dict(large:state_dict())
--[==[
state_shapes.lua:3: Linear: load_state_dict: 'weight' has shape [2, 4], the module's is [2, 3]
  fix   make the module as it was when the state was saved
  3 | small:load_state_dict(large:state_dict())
]==]
