-- ranks: 1
local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init() fc = nn.Linear(3, 2) end
function Net:forward(x) return fc(x) end
local net = Net()
net(mh.ones{1, 3})
local opt = mh.optim.Adam(net:parameters(), {lr = 1e-3})
--[==[
layer_without_self.lua:9: Adam: the list of parameters is empty
  fix   keep layers in the module (self.fc = nn.Linear(3, 2) in init), and give net:parameters()
  9 | local opt = mh.optim.Adam(net:parameters(), {lr = 1e-3})
]==]
