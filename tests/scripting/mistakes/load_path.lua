local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
net:load_state_dict("weights.safetensors")
--[==[
load_path.lua:3: Linear: load_state_dict: expected tensors by name, got 'weights.safetensors'
  fix   give what state_dict() or mh.safetensors.load(path) returned, or a table {name = tensor}
  3 | net:load_state_dict("weights.safetensors")
]==]
