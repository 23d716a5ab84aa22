local mh = require "moonhalo"
local net = mh.nn.Linear(3, 2)
local opt = mh.optim.Adam(net:parameters())
opt:load_state_dict(net:state_dict())
