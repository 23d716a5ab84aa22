local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
net:load_state_dict({mh.ones{2, 3}, mh.ones{2}})
--[==[
load_list.lua:3: Linear: load_state_dict: element 1 of the list is no {name, tensor} but Tensor float32 [2, 3]
  fix   give what state_dict() or mh.safetensors.load(path) returned, or a table {name = tensor}
  3 | net:load_state_dict({mh.ones{2, 3}, mh.ones{2}})
]==]
