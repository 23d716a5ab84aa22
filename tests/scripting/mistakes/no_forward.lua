local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init() self.fc = nn.Linear(3, 2) end
function Net:foward(x) return self.fc(x) end
local net = Net()
net(mh.ones{1, 3})
--[==[
no_forward.lua:7: Net: has no forward function
  fix   function Net:forward(x) ... end
  in    Net
  7 | net(mh.ones{1, 3})
]==]
