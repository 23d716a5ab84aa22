local mh = require "moonhalo"
local nn = mh.nn
local Net = nn.Module:extend("Net")
function Net:init() self.head = nn.Linear(4, 4) end
function Net:forward(x)
  local scales = {}
  return self.head(x) * scales.weight.mean
end
local net = Net()
net(mh.ones{1, 4})
--[==[
nil_in_forward.lua:7: attempt to index a nil value (field 'weight')
  in    Net
  7 |   return self.head(x) * scales.weight.mean
stack traceback:
    nil_in_forward.lua:7: in function <nil_in_forward.lua:5>
    nil_in_forward.lua:10: in main chunk
]==]
