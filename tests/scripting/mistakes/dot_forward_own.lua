-- ranks: 1
local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init() self.fc = nn.Linear(3, 2) end
function Net:forward(x) return self.fc(x) end
local y = Net().forward(mh.ones{1, 3})
--[==[
dot_forward_own.lua:6: Tensor: no attribute, method or operator 'fc'
  fix   self is a tensor here: call the module, net(x), or write a colon, not a dot, before the method's name
  6 | function Net:forward(x) return self.fc(x) end
stack traceback:
    dot_forward_own.lua:6: in field 'forward'
    dot_forward_own.lua:7: in main chunk
]==]
